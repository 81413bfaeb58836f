#include "graph/reduce.h"

#include <string.h>

/*
 * Design.  Axes of size 1 count as whatever their neighbours are.  The remaining ones
 * form runs of kept (K) and reduced (R) axes: K, R, KR, RK and KRK need no copy.
 */

void tm_reduce_layout(tm_reduce_plan *p, const tm_shape *s, uint32_t mask,
                      bool rows_only) {
  int state = 0; /* 0: rows, 1: n, 2: inner, 3: reduced again */
  size_t kept = 1, reduced = 1;
  *p = (tm_reduce_plan){1, 1, 1, false, mask};
  for (int32_t i = 0; i < s->rank; i++) {
    bool r = mask >> i & 1U;
    size_t d = (size_t)s->dim[i];
    *(r ? &reduced : &kept) *= d;
    if (d == 1) continue;
    if (r ? state == 0 || state == 2 : state == 1) state++;
    if (state == 0) p->rows *= d;
    if (state == 1) p->n *= d;
    if (state == 2) p->inner *= d;
  }
  if (state < 3 && !(rows_only && p->inner != 1)) return;
  *p = (tm_reduce_plan){kept, reduced, 1, true, mask};
}

/* Walk x's elements in the order kept axes, then reduced axes; offset of each. */
struct reduce_walk {
  int32_t rank;
  int64_t n[TM_MAX_RANK], step[TM_MAX_RANK], at[TM_MAX_RANK];
  int64_t pos;
};

static void reduce_walk_init(struct reduce_walk *w, const tm_shape *s, uint32_t mask) {
  int64_t step[TM_MAX_RANK], run = 1;
  for (int32_t i = s->rank - 1; i >= 0; i--) {
    step[i] = run;
    run *= s->dim[i];
  }
  memset(w, 0, sizeof *w);
  for (uint32_t pass = 0; pass < 2; pass++)
    for (int32_t i = 0; i < s->rank; i++) {
      if ((mask >> i & 1U) != pass) continue;
      w->n[w->rank] = s->dim[i];
      w->step[w->rank++] = step[i];
    }
}

/* The next run along the last walked axis; false at the end. */
static bool reduce_walk_next(struct reduce_walk *w) {
  for (int32_t i = w->rank - 2; i >= 0; i--) {
    w->pos += w->step[i];
    if (++w->at[i] < w->n[i]) return true;
    w->at[i] = 0;
    w->pos -= w->step[i] * w->n[i];
  }
  return false;
}

/* Copy between x (in its order) and flat (in walked order), either way. */
static void reduce_move(const tm_reduce_plan *p, const tm_view *x, char *flat,
                        bool back) {
  size_t size = tm_dtype_size(x->dtype);
  struct reduce_walk w;
  if (tm_view_count(x) == 0) return;
  reduce_walk_init(&w, &x->shape, p->mask);
  int64_t n = w.rank ? w.n[w.rank - 1] : 1;
  size_t step = w.rank ? (size_t)w.step[w.rank - 1] * size : size;
  do {
    char *at = (char *)x->data + (size_t)w.pos * size;
    for (int64_t i = 0; i < n; i++, at += step, flat += size)
      memcpy(back ? at : flat, back ? flat : at, size);
  } while (reduce_walk_next(&w));
}

const void *tm_reduce_data(const tm_reduce_plan *p, const tm_view *x, void *scratch) {
  if (!p->gather) return x->data;
  reduce_move(p, x, scratch, false);
  return scratch;
}

void tm_reduce_scatter(const tm_reduce_plan *p, const tm_view *out, const void *from) {
  /* const is dropped for the shared loop, which only reads `from` in this direction. */
  reduce_move(p, out, (char *)(uintptr_t)from, true);
}

void tm_reduce_shape(const tm_shape *s, uint32_t mask, bool keepdims, tm_shape *out) {
  tm_shape r = tm_shape_scalar();
  for (int32_t i = 0; i < s->rank; i++) {
    if (!(mask >> i & 1U))
      r.dim[r.rank++] = s->dim[i];
    else if (keepdims)
      r.dim[r.rank++] = 1;
  }
  *out = r;
}

uint32_t tm_reduce_unbroadcast(const tm_shape *from, const tm_shape *to) {
  uint32_t mask = 0;
  int32_t more = from->rank - to->rank;
  for (int32_t i = 0; i < from->rank; i++)
    if (i < more || (to->dim[i - more] == 1 && from->dim[i] != 1)) mask |= 1U << i;
  return mask;
}
