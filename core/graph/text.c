#include <inttypes.h>

#include "graph/graph.h"

/* Design.  One line a node, names of attributes from the op's signature:
 *
 *     %3 = matmul(%1, %2) {transpose_b=true} -> float32 (?, 10)
 */

static tm_status text_attr(tm_buf *out, const tm_attr *a) {
  char s[128];
  switch (a->kind) {
    case TM_ATTR_NONE:
      return tm_buf_puts(out, "nil");
    case TM_ATTR_BOOL:
      return tm_buf_puts(out, a->u.b ? "true" : "false");
    case TM_ATTR_FLOAT:
      return tm_buf_printf(out, "%g", a->u.f);
    case TM_ATTR_STR:
      return tm_buf_printf(out, "\"%s\"", a->u.s);
    case TM_ATTR_DTYPE:
      return tm_buf_puts(out, tm_dtype_name((tm_dtype)a->u.i));
    case TM_ATTR_FUNC:
      return tm_buf_printf(out, "graph %s (%" PRId32 " nodes)", a->u.g->name,
                           a->u.g->nnode);
    case TM_ATTR_TENSOR:
      if (tm_view_count(&a->u.t->v) == 1 && tm_dtype_is_number(a->u.t->v.dtype))
        return tm_buf_printf(out, "%g", tm_view_get_f64(&a->u.t->v, 0));
      return tm_buf_printf(out, "tensor %s",
                           tm_shape_text(&a->u.t->v.shape, s, sizeof s));
    case TM_ATTR_INT:
    case TM_ATTR_AXIS:
      return tm_buf_printf(out, "%" PRId64, a->u.i);
    default:
      break;
  }
  TM_TRY(tm_buf_putc(out, '['));
  for (int32_t i = 0; i < a->n; i++) {
    if (i) TM_TRY(tm_buf_puts(out, ", "));
    TM_TRY(a->kind == TM_ATTR_FLOATS ? tm_buf_printf(out, "%g", a->u.fs[i])
                                     : tm_buf_printf(out, "%" PRId64, a->u.is[i]));
  }
  return tm_buf_putc(out, ']');
}

static tm_status text_attrs(tm_buf *out, const tm_node *n) {
  const tm_sig *sig = tm_op_sig(n->op);
  bool any = false;
  for (int32_t k = 0; k < n->attrs.n; k++) {
    const tm_attr *a = &n->attrs.a[k];
    if (a->kind == TM_ATTR_NONE) continue;
    TM_TRY(tm_buf_printf(out, "%s%s=", any ? ", " : " {", sig->attr[k].name));
    TM_TRY(text_attr(out, a));
    any = true;
  }
  return any ? tm_buf_putc(out, '}') : TM_OK;
}

static tm_status text_ref(tm_buf *out, const tm_graph *g, tm_ref r) {
  TM_TRY(tm_buf_printf(out, "%%%" PRId32, r.node));
  return g->node[r.node].nout > 1 ? tm_buf_printf(out, ".%" PRId32, r.out) : TM_OK;
}

static tm_status text_refs(tm_buf *out, const tm_graph *g, const tm_ref *r, int32_t n) {
  for (int32_t k = 0; k < n; k++) {
    if (k) TM_TRY(tm_buf_puts(out, ", "));
    TM_TRY(text_ref(out, g, r[k]));
  }
  return TM_OK;
}

static tm_status text_types(tm_buf *out, const tm_node *n) {
  char s[128];
  for (int32_t k = 0; k < n->nout; k++) {
    TM_TRY(tm_buf_puts(out, k ? ", " : " -> "));
    if (n->out[k].dtype == TM_DTYPE_NONE)
      TM_TRY(tm_buf_puts(out, "iterator"));
    else
      TM_TRY(tm_buf_printf(out, "%s %s", tm_dtype_name(n->out[k].dtype),
                           tm_shape_text(&n->out[k].shape, s, sizeof s)));
  }
  return tm_buf_putc(out, '\n');
}

tm_status tm_graph_text(const tm_graph *g, tm_buf *out) {
  TM_TRY(tm_buf_printf(out, "function %s\n", g->name));
  for (int32_t i = 0; i < g->nnode; i++) {
    const tm_node *n = &g->node[i];
    TM_TRY(tm_buf_printf(out, "  %%%" PRId32 " = %s(", i, n->op->name));
    TM_TRY(text_refs(out, g, n->in, n->nin));
    TM_TRY(tm_buf_putc(out, ')'));
    TM_TRY(text_attrs(out, n));
    TM_TRY(text_types(out, n));
  }
  TM_TRY(tm_buf_puts(out, "  return "));
  TM_TRY(text_refs(out, g, g->out, g->nout));
  return tm_buf_putc(out, '\n');
}
