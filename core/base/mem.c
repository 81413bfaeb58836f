/* madvise is outside POSIX. */
#define _DEFAULT_SOURCE

#include "base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/check.h"

/*
 * Design.  Live bytes are counted in cells, one cache line each.  The first threads
 * of a process get a cell of their own, which they write without a locked
 * instruction (9 against 16 ns a pair of calls); all later ones share the last cell.
 * A cell alone means nothing (memory moves between threads), only the sum does.
 *
 * Aligned memory comes from the C library even with a hook; the hook is asked
 * first by a trial allocation of the same size.  So a test can fail it, and memory
 * from before a hook may be freed under it.
 *
 * Invariants:
 *   (1) The sum of all cells is the number of bytes asked for and not yet freed.
 *   (2) Each cell but the last has at most one thread that ever writes it.
 *   (3) The hook is only written while no other thread allocates.
 */
enum { MEM_CELLS = 64, MEM_LINE = 64 };

/* A huge page is asked for only where its rounding is noise. */
#define MEM_HUGE_PAGE ((size_t)2 << 20)
#define MEM_HUGE_MIN  ((size_t)32 << 20)

struct mem_cell {
  _Alignas(MEM_LINE) _Atomic int64_t bytes;
};

static struct mem_cell mem_cells[MEM_CELLS];
static atomic_uint mem_threads;
static _Thread_local unsigned mem_my_cell; /* 1-based, 0 = not chosen yet */

static tm_mem_fn mem_fn;
static void *mem_ud;

static void mem_count(int64_t delta) {
  if (mem_my_cell == 0) {
    unsigned n = atomic_fetch_add(&mem_threads, 1);
    mem_my_cell = n < MEM_CELLS - 1 ? n + 1 : MEM_CELLS;
  }
  _Atomic int64_t *bytes = &mem_cells[mem_my_cell - 1].bytes;
  if (mem_my_cell == MEM_CELLS) {
    atomic_fetch_add_explicit(bytes, delta, memory_order_relaxed);
  } else { /* (2) */
    int64_t now = atomic_load_explicit(bytes, memory_order_relaxed);
    atomic_store_explicit(bytes, now + delta, memory_order_relaxed);
  }
}

void tm_mem_hook(tm_mem_fn fn, void *ud) {
  mem_fn = fn;
  mem_ud = ud;
}

int64_t tm_mem_live(void) {
  int64_t sum = 0;
  for (size_t i = 0; i < MEM_CELLS; i++)
    sum += atomic_load_explicit(&mem_cells[i].bytes, memory_order_relaxed);
  return sum;
}

void *tm_malloc(size_t n) {
  TM_DCHECK(n > 0);
  if (n > PTRDIFF_MAX) return NULL;
  void *p = mem_fn ? mem_fn(mem_ud, NULL, 0, n) : malloc(n);
  if (p) mem_count((int64_t)n);
  return p;
}

void *tm_calloc(size_t count, size_t n) {
  size_t bytes;
  if (!tm_mul_size(count, n, &bytes) || bytes > PTRDIFF_MAX) return NULL;
  if (mem_fn) {
    void *p = tm_malloc(bytes);
    return p ? memset(p, 0, bytes) : NULL;
  }
  TM_DCHECK(bytes > 0);
  void *p = calloc(1, bytes); /* fresh pages are not written */
  if (p) mem_count((int64_t)bytes);
  return p;
}

void *tm_realloc(void *p, size_t old_size, size_t n) {
  TM_DCHECK(n > 0);
  if (n > PTRDIFF_MAX) return NULL;
  void *q = mem_fn ? mem_fn(mem_ud, p, p ? old_size : 0, n) : realloc(p, n);
  if (q) mem_count((int64_t)n - (p ? (int64_t)old_size : 0));
  return q;
}

void tm_free(void *p, size_t n) {
  if (!p) return;
  mem_count(-(int64_t)n);
  if (mem_fn)
    mem_fn(mem_ud, p, n, 0);
  else
    free(p);
}

/* True when the hook, if there is one, would give n bytes. */
static bool mem_hook_agrees(size_t n) {
  if (!mem_fn) return true;
  void *trial = mem_fn(mem_ud, NULL, 0, n);
  if (!trial) return false;
  mem_fn(mem_ud, trial, n, 0);
  return true;
}

void *tm_malloc_aligned(size_t n) {
  TM_DCHECK(n > 0);
  void *p = NULL;
  if (n > PTRDIFF_MAX || !mem_hook_agrees(n)) return NULL;
  size_t align = n >= MEM_HUGE_PAGE ? MEM_HUGE_PAGE : MEM_LINE;
  if (posix_memalign(&p, align, n) != 0) return NULL;
  /* Advice only: whole pages, so resident memory never exceeds what was asked. */
  if (n >= MEM_HUGE_MIN)
    (void)madvise(p, n / MEM_HUGE_PAGE * MEM_HUGE_PAGE, MADV_HUGEPAGE);
  mem_count((int64_t)n);
  return p;
}

void tm_free_aligned(void *p, size_t n) {
  if (!p) return;
  mem_count(-(int64_t)n);
  free(p);
}

char *tm_strdup(const char *s) { return tm_strndup(s, strlen(s)); }

char *tm_strndup(const char *s, size_t len) {
  const char *nul = len ? memchr(s, '\0', len) : NULL;
  if (nul) len = (size_t)(nul - s);
  char *copy = tm_malloc(len + 1);
  if (!copy) return NULL;
  if (len) memcpy(copy, s, len);
  copy[len] = '\0';
  return copy;
}

void tm_strfree(char *s) {
  if (s) tm_free(s, strlen(s) + 1);
}

bool tm_mul_size(size_t a, size_t b, size_t *out) {
  return !__builtin_mul_overflow(a, b, out);
}

bool tm_mul_i64(int64_t a, int64_t b, int64_t *out) {
  return !__builtin_mul_overflow(a, b, out);
}

bool tm_add_i64(int64_t a, int64_t b, int64_t *out) {
  return !__builtin_add_overflow(a, b, out);
}
