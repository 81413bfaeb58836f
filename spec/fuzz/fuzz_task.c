/* Frames of any kind to a ps and to a worker that run: after each input they answer.
 *
 * Input: a byte (which task, and what a connection for data is there), then records:
 * kind, door (0 control, 1 data), bytes of metadata (2, little-endian), 64-byte blocks
 * of payload, metadata, payload.  Kind GRAPH_TOO is a graph, sent with its right hash
 * and with a closure of it.
 *
 * Nothing that is sent makes a task connect to an address that is in the input. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "cluster/control.h"
#include "cluster/ps_wire.h"
#include "cluster/server.h"
#include "graph/graph.h"
#include "net/channel.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

enum { GRAPH_TOO = 200, SYNC = 1000000, LIMIT = 16, LIMIT_S = 60, LARGEST = 64 << 20 };

static tm_server *task[2]; /* a ps, a worker */
static uint64_t term;

/* A task may be told of variables larger than this process may be. */
static void *allocate(void *ud, void *p, size_t old_size, size_t n) {
  (void)ud, (void)old_size;
  if (n) return n > LARGEST || tm_mem_live() > 4 * LARGEST ? NULL : realloc(p, n);
  free(p);
  return NULL;
}

static void stop_tasks(void) {
  for (int i = 0; i < 2; i++) tm_server_free(task[i]);
}

static void start_tasks(void) {
  static const char *const job[2] = {"ps", "worker"};
  tm_mem_hook(allocate, NULL);
  tm_log_stream(NULL, TM_LOG_ERROR);
  for (int i = 0; i < 2; i++) {
    tm_server_options o = {
        .job = job[i], .address = "127.0.0.1:0", .cluster_id = "c", .threads = 1};
    if (tm_server_start(&o, &task[i], NULL)) abort();
  }
  atexit(stop_tasks);
}

static tm_channel *dial(int which, const char *purpose) {
  char address[32];
  tm_channel *ch;
  snprintf(address, sizeof address, "127.0.0.1:%u",
           (unsigned)tm_server_port(task[which]));
  tm_channel_options o = {.address = address,
                          .self = {.cluster = "c",
                                   .task = "/job:chief/task:0",
                                   .incarnation = 7,
                                   .term = {term, 7}},
                          .silence_ns = LIMIT_S * 1000000000ll};
  snprintf(o.self.purpose, sizeof o.self.purpose, "%s", purpose);
  if (tm_channel_open(&o, &ch, NULL)) abort();
  return ch;
}

/* Until the answer to `id`; false: the connection ended.  A task that says nothing for
 * LIMIT_S hangs. */
static bool answer(tm_channel *ch, uint64_t id) {
  tm_frame f;
  const uint8_t *meta;
  tm_err err = {0};
  do {
    tm_status s = tm_channel_head(ch, &f, &meta, &err);
    if (s == TM_ETIMEOUT) abort();
    if (s || tm_channel_end(ch, &err)) return false;
  } while (f.id != id);
  return true;
}

static bool ask(tm_channel *ch, int kind, uint64_t id, tm_packer *w) {
  tm_frame f = {.kind = (uint16_t)kind, .id = id};
  if (w && w->status) abort();
  return tm_channel_send(ch, &f, w ? w->buf : NULL, NULL, 0, NULL) == TM_OK &&
         answer(ch, id);
}

static void begin_lane(tm_channel *ch) {
  tm_buf b = TM_BUF_INIT(256);
  tm_packer w;
  tm_pack_init(&w, &b);
  tm_pack_array(&w, 4);
  tm_pack_int(&w, 0);
  tm_pack_uint(&w, 1);
  tm_pack_bool(&w, true);
  tm_pack_nil(&w);
  if (!ask(ch, TM_F_LANE, 2, &w)) abort();
  tm_buf_release(&b);
}

static tm_channel *begin_control(int which, bool replicas) {
  tm_buf b = TM_BUF_INIT(1024);
  tm_packer w;
  tm_start s = {.nworker = 1,
                .threads = 1,
                .incarnation = term,
                .heartbeat_ns = 10000000000,
                .silence_ns = 60000000000,
                .connect_timeout_ns = 1000000000,
                .replicas = replicas};
  term++;
  tm_channel *ch = dial(which, "control");
  tm_pack_init(&w, &b);
  tm_start_pack(&w, &s, NULL);
  if (!ask(ch, TM_F_START, 1, &w)) abort();
  tm_buf_release(&b);
  if (which == 0 && replicas) begin_lane(ch);
  return ch;
}

/* Two tables and a vector on lane 0. */
static void create(tm_channel *ch) {
  tm_buf b = TM_BUF_INIT(4096);
  tm_packer w;
  tm_segments seg = {NULL, 0, 0};
  tm_shard_spec sp[3];
  for (uint64_t uid = 1; uid <= 3; uid++) {
    const tm_shape shape = {uid == 2 ? 1 : 2, {4, 2}};
    sp[uid - 1] = (tm_shard_spec){.uid = uid,
                                  .dtype = uid == 3 ? TM_I64 : TM_F32,
                                  .shape = shape,
                                  .full_shape = shape,
                                  .init = {.kind = "ones"}};
  }
  tm_pack_init(&w, &b);
  if (tm_ps_specs_pack(sp, 3, &w, &seg)) abort();
  if (!ask(ch, TM_F_PS_CREATE, 4, &w)) abort();
  tm_segments_release(&seg);
  tm_buf_release(&b);
}

/* For data: to the lane that is served, or to a copy that is being made. */
static tm_channel *begin_data(bool copy) {
  tm_buf b = TM_BUF_INIT(64);
  tm_packer w;
  tm_channel *ch = dial(0, "data");
  tm_pack_init(&w, &b);
  if (copy) {
    tm_pack_array(&w, 3);
    for (int i = 1; i <= 3; i++) tm_pack_int(&w, i);
  } else {
    tm_pack_int(&w, -1);
  }
  if (!ask(ch, copy ? TM_F_REPLICA : TM_F_PS_OPEN, 3, &w)) abort();
  if (!copy) create(ch);
  tm_buf_release(&b);
  return ch;
}

/* A graph with its hash, and a closure of it whose arguments are an iterator. */
static bool send_graph(tm_channel *ch, const uint8_t *p, size_t n) {
  tm_graph *g;
  tm_err err = {0};
  if (tm_graph_unpack(p, n, &g, &err)) return true;
  tm_letter l;
  tm_frame f = {.kind = TM_F_GRAPH, .id = 5};
  tm_letter_init(&l);
  tm_pack_array(&l.w, 4);
  tm_pack_uint(&l.w, g->hash[0]);
  tm_pack_uint(&l.w, g->hash[1]);
  tm_pack_int(&l.w, 0);
  tm_letter_bytes(&l, p, n);
  tm_status s = tm_channel_send(ch, &f, &l.meta, l.seg.s, l.seg.n, &err);
  tm_letter_release(&l);
  tm_letter_init(&l);
  f = (tm_frame){.kind = TM_F_CLOSURES, .id = 6};
  tm_pack_array(&l.w, 1);
  tm_pack_array(&l.w, 10);
  for (int i = 0; i < 5; i++) tm_pack_uint(&l.w, 1);
  tm_pack_uint(&l.w, g->hash[0]);
  tm_pack_uint(&l.w, g->hash[1]);
  tm_pack_bool(&l.w, true);
  tm_pack_array(&l.w, (uint32_t)g->narg);
  for (int32_t i = 0; i < g->narg; i++) tm_pack_uint(&l.w, 1);
  tm_pack_array(&l.w, 0);
  if (s == TM_OK) s = tm_channel_send(ch, &f, &l.meta, NULL, 0, &err);
  tm_letter_release(&l);
  tm_graph_unref(g);
  return s == TM_OK;
}

/* What would call somebody else: a worker's START, a copy of a lane. */
static bool calls_out(int which, int kind, const uint8_t *p, size_t n) {
  tm_unpacker r;
  if (kind == TM_F_START) return which == 1;
  if (kind != TM_F_LANE) return false;
  tm_unpack_init(&r, p, n);
  tm_unpack_array(&r, 4, 4);
  tm_unpack_range(&r, 0, INT32_MAX);
  tm_unpack_uint(&r);
  tm_unpack_bool(&r);
  return r.status == TM_OK && !tm_unpack_nil(&r);
}

/* False: the connection ended, as it may. */
static bool send_record(tm_channel *ch, int kind, const uint8_t *meta, size_t n,
                        const uint8_t *payload, size_t bytes, bool control) {
  static uint64_t id = SYNC;
  tm_frame f = {.kind = (uint16_t)kind, .id = 9};
  tm_segment seg = {payload, bytes};
  tm_err err = {0};
  tm_buf b = TM_BUF_INIT(1 << 20);
  bool ok = tm_buf_put(&b, meta, n) == TM_OK;
  if (kind == GRAPH_TOO)
    ok = control && send_graph(ch, meta, n);
  else
    ok = ok && tm_channel_send(ch, &f, &b, &seg, bytes > 0, &err) == TM_OK;
  tm_buf_release(&b);
  return ok && ask(ch, control ? TM_F_CLAIM : TM_F_PS_STATS, ++id, NULL);
}

static void send_all(int which, tm_channel *ch[2], const uint8_t *p, size_t n) {
  bool ok[2] = {true, ch[1] != NULL};
  for (int turn = 0; n >= 5 && turn < LIMIT; turn++) {
    int kind = p[0], door = p[1] & 1;
    size_t meta = (size_t)(p[2] | p[3] << 8), bytes = (size_t)p[4] * 64;
    p += 5;
    n -= 5;
    if (meta > n) meta = n;
    if (bytes > n - meta) bytes = (n - meta) & ~(size_t)63;
    if (ok[door] && !calls_out(which, kind, p, meta))
      ok[door] = send_record(ch[door], kind, p, meta, p + meta, bytes, door == 0);
    p += meta + bytes;
    n -= meta + bytes;
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
  if (n == 0) return 0;
  if (!task[0]) start_tasks();
  int which = p[0] & 1;
  bool replicas = p[0] & 2, copy = p[0] & 4;
  tm_channel *ch[2] = {begin_control(which, replicas), NULL};
  if (which == 0) ch[1] = begin_data(copy);
  send_all(which, ch, p + 1, n - 1);
  tm_channel_close(ch[1]);
  tm_channel_close(ch[0]);
  return 0;
}
