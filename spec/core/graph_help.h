/*
 * graph_help.h - for tests of core/graph: short ways to apply ops, and a tm_state that
 * keeps variables in this process and writes down what was asked of it.
 *
 * Everything is static inline: a test is one file and the library.
 */
#ifndef TM_SPEC_GRAPH_HELP_H
#define TM_SPEC_GRAPH_HELP_H

#include <math.h>

#include "graph/exec.h"
#include "graph/grad.h"
#include "graph/value.h"
#include "test.h"

enum { HELP_VARS = 8, HELP_LOG = 4096 };

typedef struct help_state {
  tm_state state;            /* first */
  tm_tensor *var[HELP_VARS]; /* by uid */
  int exchanges, nexts;
  int64_t batch; /* iterators count up from here; batch rows of each element */
  int64_t end;   /* TM_ERANGE from there on, 0: never */
  int64_t rows;
  char log[HELP_LOG]; /* "U1 R1 | ..." one part an exchange */
  bool fail;
} help_state;

static inline void help_note(help_state *h, const char *what, uint64_t uid) {
  size_t n = strlen(h->log);
  snprintf(h->log + n, sizeof h->log - n, "%s%d ", what, (int)uid);
}

/* Variables are float32. */
static inline tm_status help_update(help_state *h, const tm_update *up, tm_err *err) {
  tm_tensor *t;
  float *x;
  const float *g = up->value.data;
  help_note(h, "U", up->uid);
  if (tm_tensor_copy(&h->var[up->uid]->v, &t, err)) return TM_ENOMEM;
  x = t->v.data;
  int64_t fan = up->fan > 0 ? up->fan : 1, rows = up->ids ? tm_view_count(up->ids) : 1;
  int64_t width = rows ? tm_view_count(&up->value) * fan / rows : 0;
  if (up->nunique) rows = up->nunique;
  for (int64_t i = 0; i < rows * width; i++) {
    int64_t at = i, from = i / width / fan * width + i % width;
    if (up->ids) at = tm_view_get_i64(up->ids, i / width) * width + i % width;
    switch (up->kind) {
      case TM_UP_ASSIGN:
      case TM_UP_SCATTER_SET:
        x[at] = g[from];
        break;
      case TM_UP_ADD:
      case TM_UP_SCATTER_ADD:
        x[at] += g[from];
        break;
      case TM_UP_SUB:
      case TM_UP_SCATTER_SUB:
        x[at] -= g[from];
        break;
      default:
        x[at] -= (float)up->hyper[0] * g[from] / (up->mean ? (float)fan : 1);
        break;
    }
  }
  tm_tensor_unref(h->var[up->uid]);
  h->var[up->uid] = t;
  return TM_OK;
}

static inline tm_status help_read(help_state *h, tm_read *rd, tm_err *err) {
  tm_tensor *t = h->var[rd->uid];
  help_note(h, rd->ids ? "G" : "R", rd->uid);
  if (!rd->ids) {
    rd->out = tm_tensor_ref(t);
    return TM_OK;
  }
  int64_t rows = t->v.shape.dim[0], width = tm_view_count(&t->v) / rows;
  int64_t fan = rd->fan > 0 ? rd->fan : 1;
  float *dst = rd->dst.data;
  memset(dst, 0, tm_view_bytes(&rd->dst));
  int64_t n = rd->nunique ? rd->nunique : tm_view_count(rd->ids);
  for (int64_t i = 0; i < n; i++) {
    int64_t id = tm_view_get_i64(rd->ids, i);
    if (id < 0 || id >= rows) return tm_fail(err, TM_EINVAL, "no row %d", (int)id);
    for (int64_t k = 0; k < width; k++)
      dst[i / fan * width + k] += ((float *)t->v.data)[id * width + k];
  }
  for (int64_t i = 0; rd->mean && i < tm_view_count(&rd->dst); i++)
    dst[i] /= (float)fan;
  return TM_OK;
}

static inline tm_status help_exchange(tm_state *s, const tm_update *up, int32_t nup,
                                      tm_read *rd, int32_t nrd, tm_err *err) {
  help_state *h = (help_state *)(void *)s;
  h->exchanges++;
  if (h->fail) return tm_fail(err, TM_EUNAVAILABLE, "the ps is gone");
  for (int32_t i = 0; i < nup; i++) TM_TRY(help_update(h, &up[i], err));
  for (int32_t i = 0; i < nrd; i++) {
    tm_status st = help_read(h, &rd[i], err);
    for (int32_t k = 0; st && k < i; k++) {
      tm_tensor_unref(rd[k].out);
      rd[k].out = NULL;
    }
    TM_TRY(st);
  }
  size_t n = strlen(h->log);
  snprintf(h->log + n, sizeof h->log - n, "| ");
  return TM_OK;
}

/* Elements are int64 vectors of h->rows counting up modulo 4, all equal. */
static inline tm_status help_next(tm_state *s, uint64_t iterator, tm_tensor **out,
                                  int32_t n, tm_err *err) {
  help_state *h = (help_state *)(void *)s;
  (void)iterator;
  h->nexts++;
  if (h->end && h->batch >= h->end) return tm_fail(err, TM_ERANGE, "end of data");
  for (int32_t i = 0; i < n; i++) {
    tm_shape shape = tm_shape_of(1, &h->rows);
    TM_TRY(tm_tensor_new(TM_I64, &shape, &out[i], err));
    for (int64_t k = 0; k < h->rows; k++)
      ((int64_t *)out[i]->v.data)[k] = (h->batch + k) % 4;
  }
  h->batch += h->rows;
  return TM_OK;
}

static inline tm_tensor *help_tensor(int32_t rank, const int64_t *dim, const float *x) {
  tm_shape shape = tm_shape_of(rank, dim);
  tm_tensor *t;
  tm_err err = {0};
  assert_ok_err(tm_tensor_new(TM_F32, &shape, &t, &err), &err);
  memcpy(t->v.data, x, tm_view_bytes(&t->v));
  return t;
}

/* A vector. */
static inline tm_tensor *help_vec(int64_t n, const float *x) {
  return help_tensor(1, &n, x);
}

static inline tm_tensor *help_ids(int64_t n, const int64_t *x) {
  tm_shape shape = tm_shape_of(1, &n);
  tm_tensor *t;
  tm_err err = {0};
  assert_ok_err(tm_tensor_new(TM_I64, &shape, &t, &err), &err);
  memcpy(t->v.data, x, tm_view_bytes(&t->v));
  return t;
}

static inline void help_open(help_state *h) {
  memset(h, 0, sizeof *h);
  h->state.exchange = help_exchange;
  h->state.next = help_next;
  h->rows = 2;
}

static inline void help_close(help_state *h) {
  for (int i = 0; i < HELP_VARS; i++) tm_tensor_unref(h->var[i]);
}

/* --- values --- */

static inline tm_value *help_value(tm_tensor *t) { /* takes t */
  tm_value *v;
  assert_ok(tm_value_of_tensor(t, &v));
  tm_tensor_unref(t);
  return v;
}

static inline tm_value *help_scalar(float x) {
  return help_value(help_tensor(0, NULL, &x));
}

/* Values made on the way, dropped by help_drop. */
static tm_value *help_temp[1024];
static int help_ntemp;

static inline tm_value *help_keep(tm_value *v) {
  assert_true(help_ntemp < (int)TM_COUNT(help_temp));
  return help_temp[help_ntemp++] = v;
}
static inline void help_drop(void) {
  while (help_ntemp) tm_value_unref(help_temp[--help_ntemp]);
}

static inline tm_value *help_op(tm_scope *sc, const char *op, tm_value *a,
                                tm_value *b) {
  tm_value *in[2] = {a, b}, *out[TM_MAX_OUTPUTS];
  int32_t n = 0;
  tm_err err = {0};
  assert_non_null(tm_op_find(op));
  assert_ok_err(tm_apply(sc, tm_op_find(op), in, 2, NULL, out, &n, &err), &err);
  assert_int_equal(n, 1);
  return help_keep(out[0]);
}

static inline tm_value *help_op3(tm_scope *sc, const char *op, tm_value *a, tm_value *b,
                                 tm_value *c) {
  tm_value *in[3] = {a, b, c}, *out[TM_MAX_OUTPUTS];
  int32_t n = 0;
  tm_err err = {0};
  assert_ok_err(tm_apply(sc, tm_op_find(op), in, 3, NULL, out, &n, &err), &err);
  return n ? help_keep(out[0]) : NULL;
}

/* State ops on a float32 variable. */
static inline void help_var_attrs(tm_attrs *a, uint64_t uid, int32_t rank,
                                  const int64_t *dim) {
  memset(a, 0, sizeof *a);
  a->n = 3;
  tm_attr_set_int(&a->a[0], TM_ATTR_INT, (int64_t)uid);
  tm_attr_set_int(&a->a[1], TM_ATTR_DTYPE, TM_F32);
  assert_ok(tm_attr_set_ints(&a->a[2], TM_ATTR_SHAPE, dim, rank));
}

static inline tm_value *help_state_op(tm_scope *sc, const char *op, tm_value *a,
                                      tm_value *b, const char *mode, uint64_t uid,
                                      int32_t rank, const int64_t *dim) {
  tm_value *in[2] = {a, b}, *out[TM_MAX_OUTPUTS];
  int32_t n = 0;
  tm_err err = {0};
  tm_attrs at;
  help_var_attrs(&at, uid, rank, dim);
  if (mode) {
    at.n = 4;
    assert_ok(tm_attr_set_str(&at.a[3], mode, strlen(mode)));
  }
  assert_ok_err(tm_apply(sc, tm_op_find(op), in, 2, &at, out, &n, &err), &err);
  tm_attrs_release(&at);
  return n ? help_keep(out[0]) : NULL;
}

static inline tm_value *help_var(tm_scope *sc, uint64_t uid, int32_t rank,
                                 const int64_t *dim) {
  return help_state_op(sc, "read_variable", NULL, NULL, NULL, uid, rank, dim);
}
static inline tm_value *help_gather(tm_scope *sc, tm_value *ids, uint64_t uid,
                                    int32_t rank, const int64_t *dim) {
  return help_state_op(sc, "gather_variable", ids, NULL, NULL, uid, rank, dim);
}
static inline void help_assign(tm_scope *sc, tm_value *x, const char *mode,
                               uint64_t uid, int32_t rank, const int64_t *dim) {
  (void)help_state_op(sc, "assign_variable", x, NULL, mode, uid, rank, dim);
}

/* A reduction over everything. */
static inline tm_value *help_sum(tm_scope *sc, tm_value *x) {
  tm_attrs a = {0};
  tm_value *out[TM_MAX_OUTPUTS];
  int32_t n;
  tm_err err = {0};
  assert_ok_err(tm_apply(sc, tm_op_find("reduce_sum"), &x, 1, &a, out, &n, &err), &err);
  return help_keep(out[0]);
}

static inline void help_equal(const tm_tensor *t, int64_t n, const float *want) {
  assert_non_null(t);
  assert_int_equal(t->v.dtype, TM_F32);
  assert_int_equal(tm_view_count(&t->v), n);
  for (int64_t i = 0; i < n; i++) {
    float got = ((const float *)t->v.data)[i];
    if (!(fabsf(got - want[i]) <= 1e-5F * fmaxf(1, fabsf(want[i]))))
      fail_msg("element %d is %g, not %g", (int)i, (double)got, (double)want[i]);
  }
}

/* --- graphs --- */

/* End a trace with these results. */
static inline tm_graph *help_end(tm_scope *sc, tm_trace *tr, tm_value *const *out,
                                 int32_t n) {
  tm_graph *g;
  tm_err err = {0};
  assert_ok_err(tm_trace_end(sc, tr, out, n, &g, &err), &err);
  tm_trace_unref(tr);
  return g;
}

static inline tm_program *help_program(tm_graph *g) { /* takes g */
  tm_program *p;
  tm_err err = {0};
  assert_ok_err(tm_program_new(g, &p, &err), &err);
  tm_graph_unref(g);
  return p;
}

static const tm_run_env help_env = {.worker = 3, .threads = 1};

#endif
