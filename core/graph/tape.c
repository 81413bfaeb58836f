#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "graph/nodes.h"
#include "graph/run.h"
#include "graph/scope.h"
#include "graph/tape.h"

/*
 * Design.  A tape is the list of ops that touched a watched value or a variable, in
 * order.  Gradients walk it backwards (backward.c).
 *
 * Invariants:
 *   (1) sc != NULL exactly while the tape stands on the scope's stack; after that no
 *       gradient can be asked for.
 *   (2) `active` holds the ids of values that depend on a watched value or a variable.
 *   (3) Entries hold references, so ids on the tape stay the values they were.
 */

static void tape_entry_release(struct tape_entry *e) {
  for (int32_t i = 0; i < e->nin + e->nout; i++) tm_value_unref(e->v[i]);
  tm_free(e->v, (size_t)(e->nin + e->nout) * sizeof *e->v);
  tm_attrs_release(&e->attrs);
}

static void tape_clear(tm_tape *tp) {
  for (int32_t i = 0; i < tp->n; i++) tape_entry_release(&tp->entry[i]);
  tm_free(tp->entry, (size_t)tp->cap * sizeof *tp->entry);
  tp->entry = NULL;
  tp->n = tp->cap = 0;
}

tm_status tm_tape_begin(tm_scope *sc, bool persistent, tm_tape **out) {
  *out = NULL;
  tm_tape *tp = tm_calloc(1, sizeof *tp);
  if (!tp) return TM_ENOMEM;
  atomic_init(&tp->refs, 1);
  tp->persistent = persistent;
  tm_status s = tm_map_new(&tp->active);
  if (!s) s = tm_scope_push(sc, (tm_frame){.kind = TM_FRAME_TAPE, .tape = tp});
  if (s) {
    tm_tape_unref(tp);
    return s;
  }
  tm_tape_ref(tp); /* the frame's */
  tp->sc = sc;
  *out = tp;
  return TM_OK;
}

tm_tape *tm_tape_ref(tm_tape *tp) {
  atomic_fetch_add_explicit(&tp->refs, 1, memory_order_relaxed);
  return tp;
}

void tm_tape_unref(tm_tape *tp) {
  if (!tp || atomic_fetch_sub_explicit(&tp->refs, 1, memory_order_acq_rel) != 1) return;
  tape_clear(tp);
  tm_map_free(tp->active);
  tm_free(tp, sizeof *tp);
}

void tm_tape_detach(tm_tape *tp) {
  tp->sc = NULL;
  if (!tp->walking) tape_clear(tp);
}

void tm_tape_stop(tm_tape *tp) {
  if (tp->sc) tm_scope_remove(tp->sc, tp);
}

void tm_tape_watch(tm_tape *tp, tm_value *v) {
  if (!tm_dtype_is_float(v->type.dtype)) return;
  if (tm_map_put(tp->active, v->id, tp)) tp->nomem = true;
}

/* --- recording --- */

/* Does a cond's branch read a variable? */
static bool tape_sub_reads(const tm_attrs *attrs) {
  for (int32_t k = 0; k < attrs->n; k++) {
    if (attrs->a[k].kind != TM_ATTR_FUNC) continue;
    const tm_graph *g = attrs->a[k].u.g;
    for (int32_t i = 0; i < g->nnode; i++)
      if (tm_node_kind_of(&g->node[i]) == TM_NODE_READ ||
          tape_sub_reads(&g->node[i].attrs))
        return true;
  }
  return false;
}

static bool tape_wants(const tm_tape *tp, const tm_op *op, const tm_attrs *attrs,
                       tm_value *const *in, int32_t nin) {
  tm_node_kind kind = tm_op_kind(op);
  if (kind == TM_NODE_READ) return true;
  bool control = kind == TM_NODE_COND || kind == TM_NODE_WHILE;
  if (!op->grad && !control) return false;
  for (int32_t i = 0; i < nin; i++)
    if (tm_map_get(tp->active, in[i]->id)) return true;
  return control && tape_sub_reads(attrs);
}

static tm_status tape_room(tm_tape *tp) {
  if (tp->n < tp->cap) return TM_OK;
  int32_t cap = tp->cap ? tp->cap * 2 : 32;
  if (cap > TM_MAX_NODES * 2) return TM_EEXHAUSTED;
  struct tape_entry *p =
      tm_realloc(tp->entry, (size_t)tp->cap * sizeof *p, (size_t)cap * sizeof *p);
  if (!p) return TM_ENOMEM;
  tp->entry = p;
  tp->cap = cap;
  return TM_OK;
}

static tm_status tape_push(tm_tape *tp, const tm_op *op, const tm_attrs *attrs,
                           tm_value *const *in, int32_t nin, tm_value *const *out,
                           int32_t nout) {
  TM_TRY(tape_room(tp));
  struct tape_entry *e = &tp->entry[tp->n];
  e->op = op;
  e->nin = nin;
  e->nout = nout;
  TM_TRY(tm_attrs_copy(&e->attrs, attrs));
  e->v = tm_malloc((size_t)(nin + nout) * sizeof *e->v);
  if (!e->v) {
    tm_attrs_release(&e->attrs);
    return TM_ENOMEM;
  }
  for (int32_t i = 0; i < nin; i++) e->v[i] = tm_value_ref(in[i]);
  for (int32_t i = 0; i < nout; i++) e->v[nin + i] = tm_value_ref(out[i]);
  tp->n++;
  return TM_OK;
}

tm_status tm_tape_record(tm_tape *tp, const tm_op *op, const tm_attrs *attrs,
                         tm_value *const *in, int32_t nin, tm_value *const *out,
                         int32_t nout) {
  if (tp->nomem) return TM_ENOMEM;
  if (tp->paused || !tape_wants(tp, op, attrs, in, nin)) return TM_OK;
  bool any = false;
  for (int32_t i = 0; i < nout; i++) {
    if (!tm_dtype_is_float(out[i]->type.dtype)) continue;
    TM_TRY(tm_map_put(tp->active, out[i]->id, tp));
    any = true;
  }
  return any ? tape_push(tp, op, attrs, in, nin, out, nout) : TM_OK;
}

/* --- gradients --- */

void tm_grad_release(tm_grad *g) {
  tm_value_unref(g->dense);
  tm_value_unref(g->ids);
  tm_value_unref(g->rows);
  memset(g, 0, sizeof *g);
}

static tm_status tape_check(const tm_tape *tp, const tm_value *target, tm_err *err) {
  if (!tp->sc)
    return tm_fail(err, TM_EPRECOND,
                   "this tape has ended: a tape gives gradients once, unless it is "
                   "persistent, and lives until its function returns");
  if (!tm_dtype_is_float(target->type.dtype))
    return tm_fail(err, TM_EINVAL, "the target of a gradient is %s, must be a float",
                   tm_dtype_name(target->type.dtype));
  return TM_OK;
}

tm_status tm_tape_gradient(tm_tape *tp, tm_value *target, tm_value *seed,
                           const tm_source *src, int32_t n, tm_grad *out, tm_err *err) {
  if (n) memset(out, 0, (size_t)n * sizeof *out);
  TM_TRY(tape_check(tp, target, err));
  if (tp->nomem) return tm_nomem(err, "a tape");
  tm_tape_ref(tp);
  tp->walking = true;
  tp->paused = !tp->persistent;
  tm_status s = tm_backward(tp, target, seed, src, n, out, err);
  tp->paused = tp->walking = false;
  if (!tp->persistent) tm_tape_stop(tp);
  if (!tp->sc) tape_clear(tp);
  tm_tape_unref(tp);
  for (int32_t i = 0; s && i < n; i++) tm_grad_release(&out[i]);
  return s;
}
