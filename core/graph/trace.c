#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "graph/scope.h"

/*
 * Design.  A trace owns the graph under construction.  Eager tensors become constants,
 * one a tensor.  A value of a trace further out becomes an argument of every trace
 * between there and here; `cap` lists, in order, the values of the parent that these
 * arguments stand for.
 *
 * Invariants:
 *   (1) g != NULL exactly while the trace is open.
 *   (2) Argument number (own arguments) + i of g stands for cap[i].
 */

tm_trace *tm_trace_ref(tm_trace *tr) {
  atomic_fetch_add_explicit(&tr->refs, 1, memory_order_relaxed);
  return tr;
}

void tm_trace_unref(tm_trace *tr) {
  if (!tr || atomic_fetch_sub_explicit(&tr->refs, 1, memory_order_acq_rel) != 1) return;
  tm_trace_close(tr);
  for (int32_t i = 0; i < tr->ncap; i++) tm_value_unref(tr->cap[i]);
  tm_free(tr->cap, (size_t)tr->cap_room * sizeof *tr->cap);
  tm_trace_unref(tr->parent);
  tm_free(tr, sizeof *tr);
}

/* Values in `inner` refer back to the trace: this breaks the ring. */
void tm_trace_close(tm_trace *tr) {
  size_t pos = 0;
  void *v;
  tm_map *inner = tr->inner, *consts = tr->consts;
  tm_graph *g = tr->g;
  tr->inner = tr->consts = NULL;
  tr->g = NULL;
  if (inner)
    while (tm_map_next(inner, &pos, NULL, NULL, NULL, &v)) tm_value_unref(v);
  tm_map_free(inner);
  tm_map_free(consts);
  tm_graph_unref(g);
}

static tm_status trace_init(tm_trace *tr, const char *name) {
  TM_TRY(tm_graph_new(name, &tr->g));
  TM_TRY(tm_map_new(&tr->consts));
  return tm_map_new(&tr->inner);
}

tm_status tm_trace_begin(tm_scope *sc, const char *name, tm_trace **out, tm_err *err) {
  *out = NULL;
  TM_TRY(tm_ops_init(err));
  tm_trace *tr = tm_calloc(1, sizeof *tr);
  if (!tr) return tm_nomem(err, "a trace");
  atomic_init(&tr->refs, 1);
  strncpy(tr->name, name ? name : "", sizeof tr->name - 1);
  tm_trace *parent = tm_scope_trace(sc);
  if (parent) tr->parent = tm_trace_ref(parent);
  tm_status s = trace_init(tr, name);
  if (!s) {
    s = tm_scope_push(sc, (tm_frame){.kind = TM_FRAME_TRACE, .trace = tr});
    if (!s) tm_trace_ref(tr); /* the frame's */
  }
  if (s) {
    tm_trace_unref(tr);
    return s == TM_ENOMEM ? tm_nomem(err, "a trace")
                          : tm_fail(err, s, "too many traces are open");
  }
  *out = tr;
  return TM_OK;
}

tm_status tm_trace_arg(tm_trace *tr, const tm_type *type, tm_value **out, tm_err *err) {
  int32_t node;
  *out = NULL;
  if (tm_graph_add_arg(tr->g, type, &node) ||
      tm_value_of_node(tr, (tm_ref){node, 0}, out))
    return tm_nomem(err, "an argument");
  return TM_OK;
}

tm_status tm_trace_iterator_arg(tm_trace *tr, const tm_type *elements, int32_t n,
                                tm_value **out, tm_err *err) {
  int32_t node;
  *out = NULL;
  if (n > TM_MAX_OUTPUTS)
    return tm_fail(err, TM_EEXHAUSTED,
                   "an element has %" PRId32 " tensors, at most %d fit", n,
                   TM_MAX_OUTPUTS);
  if (tm_graph_add_iterator(tr->g, elements, n, &node) ||
      tm_value_of_node(tr, (tm_ref){node, 0}, out))
    return tm_nomem(err, "an argument");
  return TM_OK;
}

uint64_t tm_trace_place(tm_trace *tr) {
  while (tr->parent) tr = tr->parent;
  return tr->places++;
}

/* --- inputs --- */

static tm_status trace_const(tm_trace *tr, tm_tensor *t, tm_ref *out) {
  uint64_t key = (uint64_t)(uintptr_t)t;
  int32_t node = (int32_t)(intptr_t)tm_map_get(tr->consts, key) - 1;
  if (node < 0) {
    TM_TRY(tm_graph_add_const(tr->g, t, &node));
    TM_TRY(tm_map_put(tr->consts, key, (void *)(intptr_t)(node + 1)));
  }
  *out = (tm_ref){node, 0};
  return TM_OK;
}

/* Remember the parent's value that argument number narg-1 stands for. */
static tm_status trace_push_capture(tm_trace *tr, tm_value *outer) {
  if (tr->ncap == tr->cap_room) {
    int32_t room = tr->cap_room ? tr->cap_room * 2 : 8;
    tm_value **p =
        tm_realloc(tr->cap, (size_t)tr->cap_room * sizeof *p, (size_t)room * sizeof *p);
    if (!p) return TM_ENOMEM;
    tr->cap = p;
    tr->cap_room = room;
  }
  tr->cap[tr->ncap++] = tm_value_ref(outer);
  return TM_OK;
}

static tm_status trace_capture(tm_trace *tr, tm_value *v, tm_value **out, tm_err *err);

/* v as a value of tr's parent. */
static tm_status trace_outer(tm_trace *tr, tm_value *v, tm_value **out, tm_err *err) {
  if (v->trace == tr->parent) {
    *out = v;
    return TM_OK;
  }
  return trace_capture(tr->parent, v, out, err);
}

/* The argument of tr that stands for v, a value further out; borrowed. */
static tm_status trace_capture(tm_trace *tr, tm_value *v, tm_value **out, tm_err *err) {
  *out = tm_map_get(tr->inner, v->id);
  if (*out) return TM_OK;
  tm_value *outer, *in = NULL;
  TM_TRY(trace_outer(tr, v, &outer, err));
  if (v->type.dtype == TM_DTYPE_NONE)
    TM_TRY(tm_trace_iterator_arg(tr, v->elem, v->nelem, &in, err));
  else
    TM_TRY(tm_trace_arg(tr, &v->type, &in, err));
  tm_status s = trace_push_capture(tr, outer);
  if (!s) s = tm_map_put(tr->inner, v->id, in);
  if (s) {
    tm_value_unref(in);
    return tm_nomem(err, "a capture");
  }
  *out = in;
  return TM_OK;
}

static bool trace_is_around(const tm_trace *tr, const tm_trace *outer) {
  for (tr = tr->parent; tr; tr = tr->parent)
    if (tr == outer) return outer->g != NULL;
  return false;
}

tm_status tm_trace_resolve(tm_trace *tr, tm_value *v, tm_ref *out, tm_err *err) {
  if (v->trace == tr) {
    *out = v->ref;
    return TM_OK;
  }
  if (v->t) {
    if (trace_const(tr, v->t, out)) return tm_nomem(err, "a constant");
    return TM_OK;
  }
  if (!v->trace)
    return tm_fail(err, TM_EINVAL,
                   "an iterator that a traced function uses must be an argument of it");
  if (!trace_is_around(tr, v->trace))
    return tm_fail(
        err, TM_EPRECOND,
        "a tensor of the traced function \"%s\" is used in \"%s\": return it "
        "from the one and pass it to the other",
        v->trace->name, tr->name);
  tm_value *in;
  TM_TRY(trace_capture(tr, v, &in, err));
  *out = in->ref;
  return TM_OK;
}

/* --- the end --- */

static tm_status trace_outputs(tm_trace *tr, tm_value *const *outputs, int32_t n,
                               tm_ref *ref, tm_err *err) {
  for (int32_t i = 0; i < n; i++) {
    TM_TRY(tm_trace_resolve(tr, outputs[i], &ref[i], err));
    if (tm_graph_type(tr->g, ref[i])->dtype == TM_DTYPE_NONE)
      return tm_fail(err, TM_EINVAL, "result %" PRId32 " is an iterator", i + 1);
  }
  return TM_OK;
}

static tm_status trace_finish(tm_trace *tr, tm_value *const *outputs, int32_t n,
                              tm_graph **out, tm_err *err) {
  size_t bytes = (size_t)(n + 1) * sizeof(tm_ref);
  tm_ref *ref = tm_malloc(bytes);
  if (!ref) return tm_nomem(err, "a trace");
  tm_status s = trace_outputs(tr, outputs, n, ref, err);
  if (!s) {
    s = tm_graph_finish(tr->g, ref, n);
    if (s == TM_ENOMEM) (void)tm_nomem(err, "a trace");
    if (s == TM_EEXHAUSTED)
      (void)tm_fail(err, s,
                    "the constants of \"%s\" are over 1 GB: make them variables or "
                    "arguments",
                    tr->name);
  }
  tm_free(ref, bytes);
  if (!s) *out = tm_graph_ref(tr->g);
  return s;
}

tm_status tm_trace_end(tm_scope *sc, tm_trace *tr, tm_value *const *outputs, int32_t n,
                       tm_graph **out, tm_err *err) {
  *out = NULL;
  tm_status s;
  if (tm_scope_trace(sc) != tr)
    s = tm_fail(err, TM_EPRECOND, "\"%s\" is not the innermost open trace", tr->name);
  else
    s = trace_finish(tr, outputs, n, out, err);
  tm_trace_abort(sc, tr);
  return s;
}

void tm_trace_abort(tm_scope *sc, tm_trace *tr) {
  for (int32_t i = sc->n - 1; i >= 0; i--)
    if (sc->frame[i].kind == TM_FRAME_TRACE && sc->frame[i].trace == tr) {
      tm_scope_unwind(sc, (int32_t)sc->frame[i].serial);
      return;
    }
}

int32_t tm_trace_captures(tm_trace *tr, tm_value ***out) {
  *out = tr->cap;
  return tr->ncap;
}

int32_t tm_trace_size(const tm_trace *tr) { return tr->g ? tr->g->nnode : 0; }
