#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "graph/nodes.h"
#include "graph/run.h"
#include "graph/tape.h"
#include "graph/temps.h"

/*
 * Design.  Reverse mode: forward over the tape to find which entries lie between the
 * sources and the target, then backward, calling each op's rule with the summed
 * gradients of its outputs.
 *
 * Invariants:
 *   (1) When an entry is reached, all contributions to its outputs are in: their users
 *       come later on the tape.
 *   (2) The tape may grow meanwhile (persistent tapes record the rules' ops); only the
 *       first n entries are walked, by copies.
 *   (3) Contributions are summed in the order in which they came, so results do not
 *       depend on addresses.
 */

struct acc { /* contributions to one value, a reference each */
  tm_value **v;
  int32_t n, cap;
};

struct var_acc { /* contributions to one variable */
  struct acc dense, ids, rows;
  tm_type type; /* of the whole variable, once something came */
};

struct back {
  tm_tape *tp;
  tm_map *need; /* ids of values between the sources and here */
  tm_map *acc;  /* id -> struct acc */
  tm_map *var;  /* uid -> struct var_acc: the variables asked for */
  bool *on_path;
  int32_t n;
  tm_gctx c; /* for ops outside of rules */
  struct tm_g_temps temps;
};

static tm_status acc_add(struct acc *a, tm_value *v) {
  if (a->n == a->cap) {
    int32_t cap = a->cap ? a->cap * 2 : 2;
    tm_value **p =
        tm_realloc(a->v, (size_t)a->cap * sizeof *p, (size_t)cap * sizeof *p);
    if (!p) return TM_ENOMEM;
    a->v = p;
    a->cap = cap;
  }
  a->v[a->n++] = tm_value_ref(v);
  return TM_OK;
}

static void acc_release(struct acc *a) {
  for (int32_t i = 0; i < a->n; i++) tm_value_unref(a->v[i]);
  tm_free(a->v, (size_t)a->cap * sizeof *a->v);
}

/* Fold the last contributions until one is left (add_n takes TM_MAX_LIST at once). */
static tm_value *acc_sum(struct back *b, struct acc *a) {
  while (a->n > 1) {
    int32_t k = a->n < TM_MAX_LIST ? a->n : TM_MAX_LIST;
    tm_value *s = tm_gn(&b->c, "add_n", a->v, k, NULL, 0);
    if (!s) return NULL;
    for (int32_t i = 0; i < k; i++) tm_value_unref(a->v[i]);
    a->v[0] = tm_value_ref(s);
    memmove(a->v + 1, a->v + k, (size_t)(a->n - k) * sizeof *a->v);
    a->n -= k - 1;
  }
  return a->n ? a->v[0] : NULL;
}

static tm_status back_add(struct back *b, tm_value *to, tm_value *v) {
  struct acc *a = tm_map_get(b->acc, to->id);
  if (!a) {
    a = tm_calloc(1, sizeof *a);
    if (!a) return TM_ENOMEM;
    tm_status s = tm_map_put(b->acc, to->id, a);
    if (s) {
      tm_free(a, sizeof *a);
      return s;
    }
  }
  return acc_add(a, v);
}

/* --- which entries matter --- */

static bool back_needs_var(const struct back *b, const tm_graph *g) {
  for (int32_t i = 0; i < g->nnode; i++) {
    const tm_node *n = &g->node[i];
    if (tm_node_kind_of(n) == TM_NODE_READ && tm_map_get(b->var, tm_node_uid(n)))
      return true;
    for (int32_t k = 0; k < n->attrs.n; k++)
      if (n->attrs.a[k].kind == TM_ATTR_FUNC && back_needs_var(b, n->attrs.a[k].u.g))
        return true;
  }
  return false;
}

static bool back_starts(const struct back *b, const struct tape_entry *e) {
  for (int32_t i = 0; i < e->nin; i++)
    if (tm_map_get(b->need, e->v[i]->id)) return true;
  if (tm_op_kind(e->op) == TM_NODE_READ)
    return tm_map_get(b->var, (uint64_t)e->attrs.a[0].u.i) != NULL;
  for (int32_t k = 0; k < e->attrs.n; k++)
    if (e->attrs.a[k].kind == TM_ATTR_FUNC && back_needs_var(b, e->attrs.a[k].u.g))
      return true;
  return false;
}

static tm_status back_mark(struct back *b) {
  for (int32_t i = 0; i < b->n; i++) {
    const struct tape_entry *e = &b->tp->entry[i];
    b->on_path[i] = back_starts(b, e);
    if (!b->on_path[i]) continue;
    for (int32_t k = 0; k < e->nout; k++)
      if (tm_dtype_is_float(e->v[e->nin + k]->type.dtype))
        TM_TRY(tm_map_put(b->need, e->v[e->nin + k]->id, b));
  }
  return TM_OK;
}

/* --- variables --- */

static tm_value *back_reshape(struct back *b, tm_value *v, const tm_shape *shape) {
  tm_attrs a;
  if (!v || tm_g_attrs(&b->c, "reshape", &a)) return NULL;
  tm_attr *to = tm_attr_by_name("reshape", &a, "shape");
  if (tm_attr_set_ints(to, TM_ATTR_SHAPE, shape->dim, shape->rank)) {
    b->c.status = tm_nomem(b->c.err, "a gradient");
    return NULL;
  }
  return tm_gn(&b->c, "reshape", &v, 1, &a, 0);
}

static tm_value *back_int64(struct back *b, tm_value *v) {
  tm_attrs a;
  if (!v || v->type.dtype == TM_I64 || tm_g_attrs(&b->c, "cast", &a)) return v;
  tm_attr_set_int(tm_attr_by_name("cast", &a, "dtype"), TM_ATTR_DTYPE, TM_I64);
  return tm_gn(&b->c, "cast", &v, 1, &a, 0);
}

/* ids of any shape as (n), rows as (n, row...). */
static tm_status back_rows(struct back *b, struct var_acc *a, tm_value *ids,
                           tm_value *rows) {
  tm_shape vec = {.rank = 1}, mat = {.rank = a->type.shape.rank};
  vec.dim[0] = mat.dim[0] = tm_shape_count(&ids->type.shape);
  for (int32_t i = 1; i < mat.rank; i++) mat.dim[i] = a->type.shape.dim[i];
  if (ids->type.shape.rank != 1) {
    ids = back_reshape(b, ids, &vec);
    rows = back_reshape(b, rows, &mat);
  }
  ids = back_int64(b, ids);
  if (b->c.status) return b->c.status;
  TM_TRY(acc_add(&a->ids, ids));
  return acc_add(&a->rows, rows);
}

static tm_status back_read(struct back *b, const struct tape_entry *e, tm_value *dout) {
  struct var_acc *a = tm_map_get(b->var, (uint64_t)e->attrs.a[0].u.i);
  tm_read rd;
  if (!a) return TM_OK;
  const tm_view *none[2] = {NULL, NULL};
  tm_node_read(e->op, &e->attrs, none, &rd);
  if (rd.kind == TM_READ_SLOT) return TM_OK;
  if (rd.shard >= 0)
    return tm_fail(b->c.err, TM_EUNIMPL,
                   "gradients go to whole variables, not to single shards");
  a->type.dtype = (tm_dtype)e->attrs.a[1].u.i;
  a->type.shape = tm_shape_of(e->attrs.a[2].n, e->attrs.a[2].u.is);
  if (rd.kind == TM_READ_DENSE) return acc_add(&a->dense, dout);
  return back_rows(b, a, e->v[0], dout);
}

static tm_value *back_cat(struct back *b, struct acc *a) {
  tm_attrs at;
  if (a->n == 1) return a->v[0];
  if (tm_g_attrs(&b->c, "concat", &at)) return NULL;
  tm_attr_set_int(tm_attr_by_name("concat", &at, "axis"), TM_ATTR_AXIS, 0);
  return tm_gn(&b->c, "concat", a->v, a->n, &at, 0);
}

/* Everything that came for a variable: rows if only rows came, else one dense value. */
static tm_status back_var_result(struct back *b, struct var_acc *a, tm_grad *out) {
  tm_value *ids = NULL, *rows = NULL;
  if (a->ids.n > TM_MAX_LIST)
    return tm_fail(b->c.err, TM_EEXHAUSTED, "more than %d gathers of one variable",
                   TM_MAX_LIST);
  if (a->ids.n) {
    ids = back_cat(b, &a->ids);
    rows = back_cat(b, &a->rows);
    if (b->c.status) return b->c.status;
  }
  if (a->dense.n == 0) {
    if (ids) out->ids = tm_value_ref(ids);
    if (ids) out->rows = tm_value_ref(rows);
    return TM_OK;
  }
  if (ids) {
    tm_attrs at;
    tm_value *in[2] = {ids, rows}, *d;
    TM_TRY(tm_g_attrs(&b->c, "densify", &at));
    TM_TRY(tm_attr_set_ints(tm_attr_by_name("densify", &at, "shape"), TM_ATTR_SHAPE,
                            a->type.shape.dim, a->type.shape.rank));
    d = tm_gn(&b->c, "densify", in, 2, &at, 0);
    if (!d) return b->c.status;
    TM_TRY(acc_add(&a->dense, d));
  }
  tm_value *sum = acc_sum(b, &a->dense);
  if (!sum) return b->c.status;
  out->dense = tm_value_ref(sum);
  return TM_OK;
}

/* --- the walk --- */

struct rule_call {
  tm_gctx c;
  struct tm_g_temps temps;
  tm_value *dout[TM_MAX_OUTPUTS];
  tm_value *din[TM_MAX_LIST];
  bool need[TM_MAX_LIST];
};

static tm_status rule_cond(struct back *b, tm_gctx *c) {
  uint64_t uid[TM_MAX_LIST];
  tm_value *var[TM_MAX_LIST] = {NULL};
  int32_t n = 0;
  size_t pos = 0;
  void *a;
  while (n < TM_MAX_LIST && tm_map_next(b->var, &pos, &uid[n], NULL, NULL, &a)) n++;
  tm_status s = tm_cond_backward(c, uid, n, var);
  for (int32_t i = 0; i < n; i++) {
    struct var_acc *va = tm_map_get(b->var, uid[i]);
    if (!var[i]) continue;
    if (!s) va->type = var[i]->type;
    if (!s) s = acc_add(&va->dense, var[i]);
    tm_value_unref(var[i]);
  }
  return s;
}

static tm_status rule_run(struct back *b, const struct tape_entry *e, tm_gctx *c) {
  tm_node_kind kind = tm_op_kind(e->op);
  if (kind == TM_NODE_COND) return rule_cond(b, c);
  if (kind == TM_NODE_WHILE)
    return tm_fail(c->err, TM_EUNIMPL, "while_loop has no gradient; use scan");
  tm_status s = e->op->grad(c);
  return s ? s : c->status;
}

static tm_status back_rule(struct back *b, const struct tape_entry *e,
                           struct rule_call *r) {
  memset(r->din, 0, (size_t)e->nin * sizeof *r->din);
  for (int32_t i = 0; i < e->nin; i++)
    r->need[i] = tm_map_get(b->need, e->v[i]->id) != NULL;
  r->temps = (struct tm_g_temps){0};
  r->c = (tm_gctx){.sc = b->tp->sc,
                   .op = e->op,
                   .attrs = &e->attrs,
                   .nin = e->nin,
                   .nout = e->nout,
                   .in = e->v,
                   .out = e->v + e->nin,
                   .dout = r->dout,
                   .din = r->din,
                   .need = r->need,
                   .err = b->c.err,
                   .temps = &r->temps};
  tm_status s = tm_run_fail(b->c.err, e->op, rule_run(b, e, &r->c));
  for (int32_t i = 0; i < e->nin; i++) {
    if (!s && r->din[i] && r->need[i]) s = back_add(b, e->v[i], r->din[i]);
    tm_value_unref(r->din[i]);
  }
  tm_g_temps_release(&r->temps);
  return s;
}

static tm_status back_entry(struct back *b, int32_t i, struct rule_call *r) {
  struct tape_entry e = b->tp->entry[i];
  bool any = false;
  for (int32_t k = 0; k < e.nout; k++) {
    struct acc *a = tm_map_get(b->acc, e.v[e.nin + k]->id);
    r->dout[k] = a ? acc_sum(b, a) : NULL;
    if (b->c.status) return b->c.status;
    any = any || r->dout[k];
  }
  if (!any) return TM_OK;
  if (tm_op_kind(e.op) == TM_NODE_READ) return back_read(b, &e, r->dout[0]);
  return back_rule(b, &e, r);
}

static tm_status back_walk(struct back *b) {
  struct rule_call *r = tm_malloc(sizeof *r);
  if (!r) return tm_nomem(b->c.err, "gradients");
  tm_status s = TM_OK;
  for (int32_t i = b->n - 1; i >= 0 && !s; i--) {
    if (b->on_path[i]) s = back_entry(b, i, r);
    tm_g_temps_release(&b->temps);
  }
  tm_free(r, sizeof *r);
  return s;
}

/* --- beginning and end --- */

static tm_status back_sources(struct back *b, const tm_source *src, int32_t n) {
  for (int32_t i = 0; i < n; i++) {
    if (src[i].value) {
      TM_TRY(tm_map_put(b->need, src[i].value->id, b));
      continue;
    }
    if (tm_map_get(b->var, src[i].uid)) continue;
    struct var_acc *a = tm_calloc(1, sizeof *a);
    if (!a) return TM_ENOMEM;
    if (tm_map_put(b->var, src[i].uid, a)) {
      tm_free(a, sizeof *a);
      return TM_ENOMEM;
    }
  }
  return TM_OK;
}

static tm_status back_seed(struct back *b, tm_value *target, tm_value *seed) {
  if (!seed) seed = tm_g1(&b->c, "ones_like", target);
  if (!seed) return b->c.status;
  if (seed->type.dtype != target->type.dtype ||
      !tm_shape_compatible(&seed->type.shape, &target->type.shape))
    return tm_fail(b->c.err, TM_EINVAL,
                   "the gradient given for the target has another dtype or shape");
  return back_add(b, target, seed);
}

static tm_status back_result(struct back *b, const tm_source *src, tm_grad *out) {
  if (!src->value) return back_var_result(b, tm_map_get(b->var, src->uid), out);
  struct acc *a = tm_map_get(b->acc, src->value->id);
  tm_value *v = a ? acc_sum(b, a) : NULL;
  if (v) out->dense = tm_value_ref(v);
  return b->c.status;
}

static tm_status back_all(struct back *b, tm_value *target, tm_value *seed,
                          const tm_source *src, int32_t n, tm_grad *out) {
  TM_TRY(tm_map_new(&b->need));
  TM_TRY(tm_map_new(&b->acc));
  TM_TRY(tm_map_new(&b->var));
  b->on_path = tm_calloc((size_t)b->n + 1, sizeof *b->on_path);
  if (!b->on_path) return TM_ENOMEM;
  TM_TRY(back_sources(b, src, n));
  TM_TRY(back_mark(b));
  if (!tm_map_get(b->need, target->id)) return TM_OK;
  TM_TRY(back_seed(b, target, seed));
  TM_TRY(back_walk(b));
  for (int32_t i = 0; i < n; i++) TM_TRY(back_result(b, &src[i], &out[i]));
  return TM_OK;
}

static void back_release(struct back *b) {
  size_t pos = 0;
  void *p;
  while (b->acc && tm_map_next(b->acc, &pos, NULL, NULL, NULL, &p)) {
    acc_release(p);
    tm_free(p, sizeof(struct acc));
  }
  pos = 0;
  while (b->var && tm_map_next(b->var, &pos, NULL, NULL, NULL, &p)) {
    struct var_acc *a = p;
    acc_release(&a->dense);
    acc_release(&a->ids);
    acc_release(&a->rows);
    tm_free(a, sizeof *a);
  }
  tm_map_free(b->need);
  tm_map_free(b->acc);
  tm_map_free(b->var);
  tm_free(b->on_path, ((size_t)b->n + 1) * sizeof *b->on_path);
  tm_g_temps_release(&b->temps);
}

tm_status tm_backward(tm_tape *tp, tm_value *target, tm_value *seed,
                      const tm_source *src, int32_t n, tm_grad *out, tm_err *err) {
  struct back b = {.tp = tp, .n = tp->n};
  b.c.sc = tp->sc;
  b.c.err = err;
  b.c.temps = &b.temps;
  tm_status s = back_all(&b, target, seed, src, n, out);
  back_release(&b);
  if (s == TM_ENOMEM && err && err->code == TM_OK) return tm_nomem(err, "gradients");
  return s;
}
