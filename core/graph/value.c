#include "graph/value.h"

#include <string.h>

#include "base/mem.h"
#include "graph/scope.h"

/* Design.  A value is a small refcounted box; ids come from one counter, so a tape can
 * tell two values apart even after one was freed. */

static tm_value *value_new(void) {
  static atomic_uint_fast64_t ids = 1;
  tm_value *v = tm_calloc(1, sizeof *v);
  if (!v) return NULL;
  atomic_init(&v->refs, 1);
  v->id = atomic_fetch_add_explicit(&ids, 1, memory_order_relaxed);
  return v;
}

tm_status tm_value_of_tensor(tm_tensor *t, tm_value **out) {
  tm_value *v = *out = value_new();
  if (!v) return TM_ENOMEM;
  v->t = tm_tensor_ref(t);
  v->type.dtype = t->v.dtype;
  v->type.shape = t->v.shape;
  return TM_OK;
}

static tm_status value_set_elements(tm_value *v, const tm_type *elem, int32_t n) {
  v->elem = tm_malloc((size_t)(n + 1) * sizeof *elem);
  if (!v->elem) return TM_ENOMEM;
  if (n) memcpy(v->elem, elem, (size_t)n * sizeof *elem);
  v->nelem = n;
  return TM_OK;
}

tm_status tm_value_of_iterator(uint64_t iterator, const tm_type *elem, int32_t n,
                               tm_value **out) {
  tm_value *v = *out = value_new();
  if (!v) return TM_ENOMEM;
  v->iterator = iterator;
  tm_status s = value_set_elements(v, elem, n);
  if (!s) return TM_OK;
  tm_value_unref(v);
  *out = NULL;
  return s;
}

static const tm_arg *value_iterator_arg(const tm_graph *g, int32_t node) {
  for (int32_t i = 0; i < g->narg; i++)
    if (g->arg[i].node == node && g->arg[i].iterator) return &g->arg[i];
  return NULL;
}

tm_status tm_value_of_node(tm_trace *tr, tm_ref ref, tm_value **out) {
  tm_value *v = *out = value_new();
  if (!v) return TM_ENOMEM;
  v->trace = tm_trace_ref(tr);
  v->ref = ref;
  v->type = *tm_graph_type(tr->g, ref);
  const tm_arg *arg = NULL;
  if (v->type.dtype == TM_DTYPE_NONE) arg = value_iterator_arg(tr->g, ref.node);
  tm_status s = arg ? value_set_elements(v, arg->elem, arg->nelem) : TM_OK;
  if (!s) return TM_OK;
  tm_value_unref(v);
  *out = NULL;
  return s;
}

tm_value *tm_value_ref(tm_value *v) {
  atomic_fetch_add_explicit(&v->refs, 1, memory_order_relaxed);
  return v;
}

void tm_value_unref(tm_value *v) {
  if (!v || atomic_fetch_sub_explicit(&v->refs, 1, memory_order_acq_rel) != 1) return;
  tm_tensor_unref(v->t);
  tm_trace_unref(v->trace);
  if (v->elem) tm_free(v->elem, (size_t)(v->nelem + 1) * sizeof *v->elem);
  tm_free(v, sizeof *v);
}
