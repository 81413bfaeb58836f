#include "graph/broadcast.h"

#include <string.h>

#include "base/check.h"

/*
 * Design.  An input's step along an axis is 0 where it is repeated.  Two
 * neighbouring axes merge when for every input one step of the outer is a whole run
 * of the inner; axes of size 1 vanish.  After that a bias row added to a matrix is
 * two loops, a scalar or an equal shape one.
 *
 * Invariant: the step of the last axis is 0 or 1, because inputs are contiguous.
 */

_Static_assert(TM_F32 - 1 == TM_K_F32 && TM_F64 - 1 == TM_K_F64 &&
                   TM_I32 - 1 == TM_K_I32 && TM_I64 - 1 == TM_K_I64 &&
                   TM_U8 - 1 == TM_K_U8 && TM_BOOL - 1 == TM_K_TYPES,
               "types of kernels are in the order of dtypes");

int tm_k_type_of(tm_dtype t) { return t == TM_STRING ? -1 : (int)t - 1; }

/* Step of each output axis for one input. */
static void bcast_steps(const tm_shape *out, const tm_shape *in, int64_t *step) {
  int64_t run = 1;
  for (int32_t i = 1; i <= out->rank; i++) {
    int64_t n = i <= in->rank ? in->dim[in->rank - i] : 1;
    step[out->rank - i] = n == 1 ? 0 : run;
    run *= n;
  }
}

static bool bcast_merges(const tm_bcast *p, const int64_t step[][TM_MAX_RANK],
                         int32_t axis, int64_t n) {
  for (int32_t k = 0; k < p->nin; k++)
    if (p->step[k][p->rank - 1] != step[k][axis] * n) return false;
  return true;
}

void tm_bcast_init(tm_bcast *p, const tm_shape *out, const tm_view *const *in,
                   int32_t nin) {
  int64_t step[TM_BCAST_MAX][TM_MAX_RANK];
  memset(p, 0, sizeof *p);
  p->nin = nin;
  for (int32_t k = 0; k < nin; k++) bcast_steps(out, &in[k]->shape, step[k]);
  for (int32_t i = 0; i < out->rank; i++) {
    int64_t n = out->dim[i];
    if (n == 1) continue;
    bool merge =
        p->rank > 0 && bcast_merges(p, (const int64_t(*)[TM_MAX_RANK])step, i, n);
    if (!merge) p->rank++;
    p->n[p->rank - 1] = merge ? p->n[p->rank - 1] * n : n;
    for (int32_t k = 0; k < nin; k++) p->step[k][p->rank - 1] = step[k][i];
  }
}

int64_t tm_bcast_run(const tm_bcast *p) { return p->rank ? p->n[p->rank - 1] : 1; }

bool tm_bcast_next(tm_bcast *p) {
  p->out += tm_bcast_run(p);
  for (int32_t i = p->rank - 2; i >= 0; i--) {
    for (int32_t k = 0; k < p->nin; k++) p->pos[k] += p->step[k][i];
    if (++p->at[i] < p->n[i]) return true;
    p->at[i] = 0;
    for (int32_t k = 0; k < p->nin; k++) p->pos[k] -= p->step[k][i] * p->n[i];
  }
  return false;
}

/* Steps along the last axis; a lone element counts as an array. */
static int bcast_last(const tm_bcast *p, int32_t k) {
  return p->rank ? (int)p->step[k][p->rank - 1] : 1;
}

static void *bcast_at(const tm_view *v, int64_t i, size_t size) {
  return (char *)v->data + (size_t)i * size;
}

void tm_broadcast_binary(const tm_view *out, const tm_view *a, const tm_view *b,
                         tm_k_binary *f) {
  int64_t n = tm_view_count(out);
  if (n == 0) return;
  if (tm_shape_equal(&a->shape, &b->shape)) {
    f(out->data, a->data, b->data, (size_t)n, TM_K_VV);
    return;
  }
  tm_bcast p;
  tm_bcast_init(&p, &out->shape, (const tm_view *const[]){a, b}, 2);
  size_t in = tm_dtype_size(a->dtype), to = tm_dtype_size(out->dtype);
  size_t run = (size_t)tm_bcast_run(&p);
  tm_k_mode m = !bcast_last(&p, 0) ? TM_K_SV : !bcast_last(&p, 1) ? TM_K_VS : TM_K_VV;
  do
    f(bcast_at(out, p.out, to), bcast_at(a, p.pos[0], in), bcast_at(b, p.pos[1], in),
      run, m);
  while (tm_bcast_next(&p));
}

void tm_broadcast_where(const tm_view *out, const tm_view *cond, const tm_view *a,
                        const tm_view *b) {
  if (tm_view_count(out) == 0) return;
  tm_bcast p;
  tm_bcast_init(&p, &out->shape, (const tm_view *const[]){cond, a, b}, 3);
  size_t size = tm_dtype_size(out->dtype);
  tm_k_steps s = {bcast_last(&p, 0), bcast_last(&p, 1), bcast_last(&p, 2)};
  do
    tm_k_where(bcast_at(out, p.out, size), bcast_at(cond, p.pos[0], 1),
               bcast_at(a, p.pos[1], size), bcast_at(b, p.pos[2], size),
               (size_t)tm_bcast_run(&p), size, s);
  while (tm_bcast_next(&p));
}

void tm_broadcast_copy(const tm_view *out, const tm_view *x) {
  if (tm_view_count(out) == 0) return;
  tm_bcast p;
  tm_bcast_init(&p, &out->shape, (const tm_view *const[]){x}, 1);
  size_t size = tm_dtype_size(out->dtype);
  size_t run = (size_t)tm_bcast_run(&p);
  bool array = bcast_last(&p, 0);
  do {
    void *to = bcast_at(out, p.out, size), *from = bcast_at(x, p.pos[0], size);
    if (array)
      memcpy(to, from, run * size);
    else
      tm_k_fill(to, from, size, run);
  } while (tm_bcast_next(&p));
}
