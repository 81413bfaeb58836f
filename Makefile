# tidemill: build, test, install.  `make help` lists the targets.
#
#   make [B=dir] [CC=gcc|clang] [LUA=lua5.4|luajit] [SAN=none|address|thread|fuzzer]
#        [NDEBUG=1] [NO_CLONES=1] [V=1]
#
# Each variant builds in a directory of its own, so they never mix objects.

# As many jobs as cores, unless the caller said -j (which make hides from us here, so
# that we look at its command line) or is itself a make.
ifeq ($(MAKELEVEL),0)
ifeq (,$(shell tr '\0' ' ' 2>/dev/null </proc/$$PPID/cmdline | grep -oE ' (-[a-z]*j|--jobs)'))
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2)
endif
endif
MAKEFLAGS += --no-builtin-rules
.SUFFIXES:
.DELETE_ON_ERROR:

# ---- variant ----

ifeq ($(origin CC),default)
CC := gcc
endif
# LuaRocks says only where the headers are; what is not 5.4 speaks 5.1, as LuaJIT does.
LUA ?= $(if $(LUA_INCDIR),$(if $(findstring 5.4,$(LUA_INCDIR)),lua5.4,luajit),lua5.4)
SAN ?= none
V ?= 0

VARIANT := $(if $(filter luajit,$(LUA)),-luajit)$(if $(findstring clang,$(CC)),-clang)
VARIANT := $(VARIANT)$(if $(filter address,$(SAN)),-asan)$(if $(filter thread,$(SAN)),-tsan)
VARIANT := $(VARIANT)$(if $(filter fuzzer,$(SAN)),-fuzz)
VARIANT := $(VARIANT)$(if $(NDEBUG),-ndebug)$(if $(NO_CLONES),-noclones)
B ?= build$(VARIANT)

# ---- tools and libraries ----

PKG_CONFIG ?= pkg-config
pkg = $(shell $(PKG_CONFIG) $(1) $(2) 2>/dev/null)
MSGPACK_PC := $(firstword $(foreach p,msgpack-c msgpack msgpackc,$(if $(call pkg,--modversion,$(p)),$(p))))
# libcurl may be missing: then preemption is not watched at addresses.
CURL_PC := $(if $(call pkg,--modversion,libcurl),libcurl)
PCS := libuv $(MSGPACK_PC) openblas zlib jansson libprotobuf-c $(CURL_PC)
PROTOC_C ?= protoc-c

LUA_CFLAGS := $(if $(LUA_INCDIR),-I$(LUA_INCDIR),$(call pkg,--cflags,$(LUA)))
LUA_LIBS := $(call pkg,--libs,$(LUA))
PC_CFLAGS := $(call pkg,--cflags,$(PCS))
PC_LIBS := $(call pkg,--libs,$(PCS))
# SLEEF ships no description in some releases; its name is all we need.
LIBS = -Wl,--as-needed $(PC_LIBS) -lsleef -lpthread -lm

# ---- flags ----

TM_WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
  -Wpointer-arith -Wwrite-strings -Wvla -Wundef -Wdouble-promotion -Wconversion -Werror
# assert(!"words") is how a case that cannot be is marked.
TM_WARN += $(if $(findstring clang,$(CC)),-Wno-string-conversion)
TM_STD := -std=c11 -D_POSIX_C_SOURCE=200809L -ffp-contract=off
SAN_FLAGS_none :=
SAN_FLAGS_address := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
SAN_FLAGS_thread := -fsanitize=thread -fno-omit-frame-pointer
SAN_FLAGS_fuzzer := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
SAN_FLAGS := $(SAN_FLAGS_$(SAN))
# Sanitized loops do not vectorise, which clang takes for a broken promise.
ifneq ($(SAN),none)
SAN_FLAGS += $(if $(findstring clang,$(CC)),-Wno-pass-failed)
endif

TM_CFLAGS = $(TM_STD) $(TM_WARN) -g -fPIC -Icore -Icore/include -I$(B)/gen $(SAN_FLAGS) \
  $(if $(NDEBUG),-DNDEBUG) $(if $(NO_CLONES),-DTM_NO_CLONES) $(if $(CURL_PC),-DTM_CURL) \
  $(PC_CFLAGS)
OPT = -O2
DEPFLAGS = -MMD -MP
LDFLAGS ?=
TM_LDFLAGS = $(SAN_FLAGS) $(LDFLAGS)

# ---- sources ----

CORE_SRC := $(filter-out core/lua/% core/host/%,$(wildcard core/*/*.c))
PROTO_SRC := $(wildcard core/*/*.proto)
LUA_SRC := $(wildcard core/lua/*.c)
HOST_SRC := $(filter-out core/host/embed.c,$(wildcard core/host/*.c))
TEST_SRC := $(wildcard spec/core/test_*.c)
FUZZ_SRC := $(wildcard spec/fuzz/fuzz_*.c)
LUA_MODULES := $(shell find lua -name '*.lua' 2>/dev/null)

obj = $(patsubst %.c,$(B)/obj/%.o,$(1))
# Messages of foreign formats: C made from their .proto, in $(B)/gen.
PROTO_C := $(patsubst core/%.proto,$(B)/gen/%.pb-c.c,$(PROTO_SRC))
CORE_OBJ := $(call obj,$(CORE_SRC)) $(PROTO_C:.c=.o)
# What only programs that embed tidemill need of the host.
EMBED_OBJ := $(call obj,core/host/embed.c)
LUA_OBJ := $(call obj,$(LUA_SRC))
HOST_OBJ := $(call obj,$(HOST_SRC))
TEST_BIN := $(patsubst spec/core/%.c,$(B)/spec/%,$(TEST_SRC))
FUZZ_BIN := $(patsubst spec/fuzz/%.c,$(B)/fuzz/%,$(FUZZ_SRC))
REPLAY_BIN := $(patsubst spec/fuzz/%.c,$(B)/replay/%,$(FUZZ_SRC))

LIB_OBJ := $(CORE_OBJ) $(LUA_OBJ) $(EMBED_OBJ)
LIB_A := $(B)/libtidemill.a
LIB_SO := $(B)/libtidemill.so
CORE_SO := $(if $(LUA_SRC),$(B)/lib/tidemill/core.so)
HOST := $(if $(HOST_SRC),$(if $(LUA_SRC),$(B)/tidemill))

ifeq ($(V),0)
Q := @
# Nothing with -s: its letter stands in the first word of MAKEFLAGS.
say = $(if $(findstring s,$(filter-out --%,$(firstword -$(MAKEFLAGS)))),@:,@printf '  %-4s %s\n' $(1) $(2))
else
say = @:
endif

# ---- build ----

.PHONY: all lib tests tools help
all: lib $(CORE_SO) $(HOST)
lib: $(LIB_A) $(LIB_SO)
tests: $(TEST_BIN) $(REPLAY_BIN) tools

help:
	@sed -n 's/^#: //p' Makefile

#: make               libtidemill.a, libtidemill.so, the Lua module, the program
#: make run           install what is missing (as root), build, train examples/adult.lua
#: make test          all tests and checks; last line: N passed, N failed
#: make test-all      the same under sanitizers, other compilers, valgrind, fuzzers
#: make bench         the benchmarks; JSON lines
#: make install       PREFIX=/usr/local DESTDIR=
#: make env           LUA_PATH and LUA_CPATH for a stock lua5.4
#: make deps          say which Debian packages are missing
#: make format        clang-format over the C sources
#: make clean         remove every build directory

# errno and traps of float arithmetic are never looked at; without them loops with
# sqrt, floor and comparisons vectorise.  Values do not change.
$(B)/obj/core/kernel/%.o: OPT = -O3 -fno-math-errno -fno-trapping-math
# The module's entry must be seen; core.map hides the rest.
$(B)/obj/core/lua/%.o: VIS = -fvisibility=default
$(B)/obj/core/lua/%.o $(B)/obj/core/host/%.o: EXTRA = $(LUA_CFLAGS)
VIS = -fvisibility=hidden

$(B)/obj/%.o: %.c $(B)/flags
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(OPT) $(TM_CFLAGS) $(VIS) $(EXTRA) $(DEPFLAGS) -c $< -o $@

$(B)/gen/%.pb-c.c $(B)/gen/%.pb-c.h &: core/%.proto
	$(call say,PB,$<)
	@command -v $(PROTOC_C) >/dev/null || { echo "$(PROTOC_C) is missing: see make deps" >&2; exit 1; }
	@mkdir -p $(@D)
	$(Q)$(PROTOC_C) --proto_path=core --c_out=$(B)/gen $<

$(B)/gen/%.pb-c.o: $(B)/gen/%.pb-c.c $(B)/flags
	$(call say,CC,$<)
	$(Q)$(CC) $(CFLAGS) $(OPT) $(TM_CFLAGS) $(VIS) -c $< -o $@

# Sources that include made headers wait for them; afterwards their .d files tell.
$(call obj,$(wildcard core/watch/*.c) spec/core/test_watch_event.c): | $(PROTO_C)

# Objects depend on the flags they were made with.
FLAGS_NOW = $(CC) $(CFLAGS) $(TM_CFLAGS) $(LUA_CFLAGS)
$(B)/flags: FORCE
	@mkdir -p $(B)
	@printf '%s\n' '$(FLAGS_NOW)' | cmp -s - $@ || printf '%s\n' '$(FLAGS_NOW)' > $@
# Libraries depend on the list of their members, so that a deleted file goes.
$(B)/members: FORCE
	@mkdir -p $(B)
	@printf '%s\n' '$(LIB_OBJ)' | cmp -s - $@ || printf '%s\n' '$(LIB_OBJ)' > $@
.PHONY: FORCE
FORCE:

$(LIB_A): $(LIB_OBJ) $(B)/members
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $(LIB_OBJ)

# Only what tidemill.h declares is seen.
$(LIB_SO): $(LIB_OBJ) $(B)/members core/include/tidemill.map
	$(call say,LD,$@)
	$(Q)$(CC) -shared $(TM_LDFLAGS) -Wl,-soname,libtidemill.so \
	  -Wl,--version-script=core/include/tidemill.map -o $@ $(LIB_OBJ) $(LUA_LIBS) $(LIBS)

# A Lua module must not link liblua: its symbols come from the program.
$(B)/lib/tidemill/core.so: $(LUA_OBJ) $(LIB_A) core/lua/core.map
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) -shared $(LIBFLAG) $(TM_LDFLAGS) -Wl,--version-script=core/lua/core.map \
	  -o $@ $(LUA_OBJ) $(LIB_A) $(LIBS)

# -E: C modules that scripts load (lfs, op libraries) find Lua and TM_API in here.
$(B)/tidemill: $(HOST_OBJ) $(LUA_OBJ) $(LIB_A)
	$(call say,LD,$@)
	$(Q)$(CC) $(TM_LDFLAGS) -Wl,-E -o $@ $(HOST_OBJ) $(LUA_OBJ) $(LIB_A) \
	  -Wl,--no-as-needed $(LUA_LIBS) $(LIBS) -ldl

# ---- C tests and fuzzers ----

$(B)/obj/spec/%.o: EXTRA = -Ispec/core $(LUA_CFLAGS)

$(B)/spec/%: $(B)/obj/spec/core/%.o $(LIB_A)
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(TM_LDFLAGS) -o $@ $< $(LIB_A) -lcmocka $(LIBS)

# Tests of the binding and of hosts have a Lua in them.
$(B)/spec/test_lua_% $(B)/spec/test_host_%: LIBS := $(LUA_LIBS) $(LIBS)

$(B)/fuzz/%: $(B)/obj/spec/fuzz/%.o $(LIB_A)
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(TM_LDFLAGS) -fsanitize=fuzzer -o $@ $< $(LIB_A) $(LIBS)

# A wire between two tasks that tests can cut; a server whose answers are files.
tools: $(B)/proxy $(B)/httpd $(B)/killer.so
$(B)/proxy $(B)/httpd: $(B)/%: $(B)/obj/spec/tools/%.o
	$(call say,LD,$@)
	$(Q)$(CC) $(TM_LDFLAGS) -o $@ $< $(LIBS)

# Preloaded into a task, ends it at a system call.
$(B)/killer.so: $(B)/obj/spec/tools/killer.o
	$(call say,LD,$@)
	$(Q)$(CC) -shared $(LDFLAGS) -o $@ $< -ldl
$(B)/obj/spec/tools/killer.o: SAN_FLAGS :=
$(B)/obj/spec/tools/killer.o: VIS = -fvisibility=default

# The same entries without libFuzzer, for `make test`.
$(B)/replay/%: $(B)/obj/spec/fuzz/%.o $(B)/obj/spec/fuzz/replay.o $(LIB_A)
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(TM_LDFLAGS) -o $@ $(filter %.o,$^) $(LIB_A) $(LIBS)

.PHONY: fuzz-bins
fuzz-bins: $(FUZZ_BIN)

.SECONDARY:
-include $(wildcard $(patsubst %,$(B)/obj/%/*.d,$(sort $(dir $(CORE_SRC) $(LUA_SRC) $(HOST_SRC) $(TEST_SRC) $(FUZZ_SRC)))))

# ---- tests ----

RUN_TESTS = B='$(B)' SAN='$(SAN)' CC='$(CC)' LUA='$(LUA)' spec/tools/run.sh
SUB = $(MAKE) --no-print-directory

.PHONY: test test-code test-c test-lua check
#: make test-c        only the C tests; ONLY=pattern for some, here and elsewhere
#: make test-lua      only the Lua specs
#: make check         only layers, format, luacheck, sizes
test: all tests
	@$(RUN_TESTS) c lua check
test-code: all tests
	@$(RUN_TESTS) c lua
test-c: all tests
	@$(RUN_TESTS) c
test-lua: all tools
	@$(RUN_TESTS) lua
check:
	@$(RUN_TESTS) check

#: make test-asan     ASan and UBSan: C tests and Lua specs (also test-tsan)
#: make test-clang    built by clang (also test-ndebug, test-noclones)
#: make test-luajit   the specs under LuaJIT, which `make LUA=luajit` builds for
#: make test-valgrind a part of the C tests under valgrind
#: make fuzz          each parser under libFuzzer, FUZZ_SECONDS=60 each
ALL_PARTS := test test-asan test-tsan test-noclones test-ndebug test-clang test-luajit \
  test-valgrind fuzz test-chaos chaos-evaluate
.PHONY: test-all $(filter-out test,$(ALL_PARTS))
test-all:
	+@MAKE='$(MAKE)' spec/tools/all.sh $(ALL_PARTS)
test-asan:
	+@$(SUB) SAN=address test-code
test-tsan:
	+@$(SUB) SAN=thread test-code
test-noclones:
	+@$(SUB) NO_CLONES=1 test-code
test-ndebug:
	+@$(SUB) NDEBUG=1 test-code
test-clang:
	+@$(SUB) CC=clang test-code
test-luajit:
	+@$(SUB) LUA=luajit all tools
	@B=build-luajit LUA=luajit spec/tools/run.sh luajit
test-valgrind: all tests
	@$(RUN_TESTS) valgrind

FUZZ_SECONDS ?= 60
fuzz:
	+@$(SUB) CC=clang SAN=fuzzer fuzz-bins
	@B=build-clang-fuzz FUZZ_SECONDS='$(FUZZ_SECONDS)' spec/tools/run.sh fuzz

#: make chaos         a cluster under SEED=1 STEPS=2000 POLICY=replicas FAULTS=200
SEED ?= 1
STEPS ?= 2000
POLICY ?= replicas
FAULTS ?= 200
.PHONY: chaos
chaos: all $(B)/proxy
	@TM_BUILD='$(B)' $(B)/tidemill spec/chaos/driver.lua $(SEED) $(STEPS) $(POLICY) $(FAULTS)
test-chaos:
	+@$(SUB) FAULTS=25 chaos

#: make chaos-evaluate  evaluation, exact while KILLS=200 workers are killed, SEED=1
KILLS ?= 200
chaos-evaluate: all
	@TM_BUILD='$(B)' $(B)/tidemill spec/chaos/evaluate.lua $(SEED) $(KILLS)

#: make interop       compare with Python's safetensors, tensorboard, tf-keras (PYTHON=)
.PHONY: interop
interop: all $(B)/spec/test_ckpt_interop
	@B='$(B)' spec/interop/safetensors.sh
	@B='$(B)' spec/interop/tensorboard.sh
	@B='$(B)' spec/interop/curves.sh

.PHONY: format bench
format:
	clang-format -i $$(git ls-files 'core/*.[ch]' 'spec/*.[ch]')
bench: all
	@for f in bench/*.lua; do [ -e "$$f" ] && $(B)/tidemill "$$f"; done

# ---- run, install ----

.PHONY: deps deps-install run install env clean
deps:
	@spec/tools/deps.sh list
deps-install:
	@spec/tools/deps.sh install

# The libraries are looked up again by the second make, after they were installed.
run: deps-install
	+@$(SUB) B='$(B)' all
	@$(B)/tidemill examples/adult.lua

PREFIX ?= /usr/local
DESTDIR ?=
LUA_DIR_VERSION := $(if $(filter luajit,$(LUA)),5.1,5.4)
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib/lua/$(LUA_DIR_VERSION)
LUADIR ?= $(PREFIX)/share/lua/$(LUA_DIR_VERSION)

install: all
	install -d '$(DESTDIR)$(BINDIR)' '$(DESTDIR)$(LUADIR)' '$(DESTDIR)$(LIBDIR)/tidemill'
	$(if $(HOST),install -m 755 $(HOST) '$(DESTDIR)$(BINDIR)/tidemill')
	$(if $(CORE_SO),install -m 755 $(CORE_SO) '$(DESTDIR)$(LIBDIR)/tidemill/core.so')
	@cd lua 2>/dev/null && find . -name '*.lua' | while read -r f; do \
	  install -D -m 644 "$$f" '$(abspath $(DESTDIR)$(LUADIR))'/"$$f" || exit 1; done || [ ! -d lua ]
ifeq ($(ROCK),)
	install -d '$(DESTDIR)$(PREFIX)/lib' '$(DESTDIR)$(PREFIX)/include'
	install -m 644 $(LIB_A) '$(DESTDIR)$(PREFIX)/lib/libtidemill.a'
	install -m 755 $(LIB_SO) '$(DESTDIR)$(PREFIX)/lib/libtidemill.so'
	$(if $(wildcard core/include/tidemill.h),install -m 644 core/include/tidemill.h '$(DESTDIR)$(PREFIX)/include/tidemill.h')
endif

ENV_SUFFIX := $(if $(filter luajit,$(LUA)),,_5_4)
env:
	@echo "export LUA_PATH$(ENV_SUFFIX)='$(CURDIR)/lua/?.lua;$(CURDIR)/lua/?/init.lua;;'"
	@echo "export LUA_CPATH$(ENV_SUFFIX)='$(abspath $(B))/lib/?.so;;'"

clean:
	rm -rf build build-*
