#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "graph/nodes.h"
#include "tensor/codec.h"

/*
 * Design.  A graph is [1, name, optimized, nodes, outputs].
 *
 *   node    = [op, [in...], attrs, place]   in: node and output numbers in turn
 *   attrs   = [attr...]; attr = nil | [kind, value]; a function is a graph in place
 *   args are nodes of the op "arg" with attrs [iterator, types] (tm_attr_set_types)
 *   outputs = [node, out, ...]
 *
 * Everything that arrives is checked: decoding builds the graph with the same functions
 * as tracing, so types are inferred anew and nothing that a peer says of them counts.
 * Node numbers, counts and nesting are bounded; nothing is allocated but what the bytes
 * at hand pay for.
 */
enum { VERSION = 1, MAX_DEPTH = 16, MAX_LIST = 1 << 16, MAX_TEXT = 1 << 20 };

static void pack_attr(tm_packer *w, const tm_attr *a);

static void pack_ints(tm_packer *w, const tm_attr *a) {
  tm_pack_i64s(w, a->u.is, (uint32_t)a->n);
}

static void pack_floats(tm_packer *w, const tm_attr *a) {
  tm_pack_array(w, (uint32_t)a->n);
  for (int32_t i = 0; i < a->n; i++) tm_pack_double(w, a->u.fs[i]);
}

static void pack_arg(tm_packer *w, const tm_graph *g, int32_t node) {
  tm_attr a = {0};
  const tm_arg *arg = NULL;
  for (int32_t i = 0; i < g->narg; i++)
    if (g->arg[i].node == node) arg = &g->arg[i];
  TM_DCHECK(arg);
  tm_status s = arg->iterator ? tm_attr_set_types(&a, arg->elem, arg->nelem)
                              : tm_attr_set_types(&a, g->node[node].out, 1);
  if (s && !w->status) w->status = s;
  tm_pack_array(w, 2);
  tm_pack_bool(w, arg->iterator);
  pack_ints(w, &a);
  tm_attrs release = {1, {a}};
  tm_attrs_release(&release);
}

static void pack_node(tm_packer *w, const tm_graph *g, int32_t i) {
  const tm_node *n = &g->node[i];
  tm_pack_array(w, 4);
  tm_pack_cstr(w, n->op->name);
  tm_pack_array(w, (uint32_t)n->nin * 2);
  for (int32_t k = 0; k < n->nin; k++) {
    tm_pack_int(w, n->in[k].node);
    tm_pack_int(w, n->in[k].out);
  }
  if (tm_node_kind_of(n) == TM_NODE_ARG) {
    pack_arg(w, g, i);
  } else {
    tm_pack_array(w, (uint32_t)n->attrs.n);
    for (int32_t k = 0; k < n->attrs.n; k++) pack_attr(w, &n->attrs.a[k]);
  }
  tm_pack_uint(w, n->place);
}

static void pack_graph(tm_packer *w, const tm_graph *g) {
  tm_pack_array(w, 5);
  tm_pack_int(w, VERSION);
  tm_pack_cstr(w, g->name);
  tm_pack_bool(w, g->optimized);
  tm_pack_array(w, (uint32_t)g->nnode);
  for (int32_t i = 0; i < g->nnode && !w->status; i++) pack_node(w, g, i);
  tm_pack_array(w, (uint32_t)g->nout * 2);
  for (int32_t i = 0; i < g->nout; i++) {
    tm_pack_int(w, g->out[i].node);
    tm_pack_int(w, g->out[i].out);
  }
}

static void pack_attr(tm_packer *w, const tm_attr *a) {
  if (a->kind == TM_ATTR_NONE) {
    tm_pack_nil(w);
    return;
  }
  tm_pack_array(w, 2);
  tm_pack_int(w, a->kind);
  switch (a->kind) {
    case TM_ATTR_BOOL:
      tm_pack_bool(w, a->u.b);
      return;
    case TM_ATTR_FLOAT:
      tm_pack_double(w, a->u.f);
      return;
    case TM_ATTR_STR:
      tm_pack_str(w, a->u.s, (size_t)a->n);
      return;
    case TM_ATTR_AXES:
    case TM_ATTR_INTS:
    case TM_ATTR_SHAPE:
      pack_ints(w, a);
      return;
    case TM_ATTR_FLOATS:
      pack_floats(w, a);
      return;
    case TM_ATTR_TENSOR:
      tm_pack_tensor(w, &a->u.t->v);
      return;
    case TM_ATTR_FUNC:
      pack_graph(w, a->u.g);
      return;
    default:
      tm_pack_int(w, a->u.i);
      return;
  }
}

tm_status tm_graph_pack(const tm_graph *g, tm_buf *out) {
  tm_packer w;
  tm_pack_init(&w, out);
  pack_graph(&w, g);
  return w.status;
}

/* --- decoding --- */

struct dec {
  tm_unpacker *r;
  tm_err *err;
  int32_t depth;
  int32_t left; /* nodes that may still come, sub-graphs included */
  uint64_t (*uid)(void *ud, uint64_t was); /* NULL: they stay */
  void *ud;
};

/* The reader's error, if it has one, with its reason. */
static tm_status dec_status(struct dec *d) {
  if (!d->r->status) return TM_OK;
  return tm_fail(d->err, d->r->status, "malformed graph: %s",
                 d->r->reason ? d->r->reason : "bad bytes");
}

static tm_status dec_graph(struct dec *d, tm_graph **out);

static tm_status dec_ints(struct dec *d, tm_attr_kind kind, tm_attr *a) {
  uint32_t n = tm_unpack_array(d->r, 0, MAX_LIST);
  TM_TRY(dec_status(d));
  int64_t *v = tm_malloc((n + 1) * sizeof *v);
  if (!v) return tm_nomem(d->err, "a graph");
  for (uint32_t i = 0; i < n; i++) v[i] = tm_unpack_int(d->r);
  tm_status s = dec_status(d);
  if (!s && tm_attr_set_ints(a, kind, v, (int32_t)n)) s = tm_nomem(d->err, "a graph");
  tm_free(v, (n + 1) * sizeof *v);
  return s;
}

static tm_status dec_floats(struct dec *d, tm_attr *a) {
  uint32_t n = tm_unpack_array(d->r, 0, MAX_LIST);
  TM_TRY(dec_status(d));
  double *v = tm_malloc((n + 1) * sizeof *v);
  if (!v) return tm_nomem(d->err, "a graph");
  for (uint32_t i = 0; i < n; i++) v[i] = tm_unpack_double(d->r);
  tm_status s = dec_status(d);
  if (!s && tm_attr_set_floats(a, v, (int32_t)n)) s = tm_nomem(d->err, "a graph");
  tm_free(v, (n + 1) * sizeof *v);
  return s;
}

static tm_status dec_text(struct dec *d, tm_attr *a) {
  size_t n;
  const char *s = tm_unpack_str(d->r, MAX_TEXT, &n);
  TM_TRY(dec_status(d));
  if (n && memchr(s, 0, n))
    return tm_fail(d->err, TM_EINVAL, "malformed graph: a text with a zero byte");
  if (tm_attr_set_str(a, n ? s : "", n)) return tm_nomem(d->err, "a graph");
  return TM_OK;
}

static tm_status dec_tensor(struct dec *d, tm_attr *a) {
  tm_tensor *t = NULL;
  TM_TRY(tm_unpack_tensor(d->r, (size_t)1 << 30, &t, d->err));
  tm_attr_set_tensor(a, t);
  tm_tensor_unref(t);
  return TM_OK;
}

static tm_status dec_func(struct dec *d, tm_attr *a) {
  tm_graph *g;
  TM_TRY(dec_graph(d, &g));
  tm_attr_set_graph(a, g);
  tm_graph_unref(g);
  return TM_OK;
}

static tm_status dec_attr(struct dec *d, tm_attr *a) {
  if (tm_unpack_nil(d->r)) return TM_OK;
  (void)tm_unpack_array(d->r, 2, 2);
  int64_t kind = tm_unpack_range(d->r, TM_ATTR_BOOL, TM_ATTR_FUNC);
  TM_TRY(dec_status(d));
  switch ((tm_attr_kind)kind) {
    case TM_ATTR_BOOL:
      tm_attr_set_bool(a, tm_unpack_bool(d->r));
      return dec_status(d);
    case TM_ATTR_FLOAT:
      tm_attr_set_float(a, tm_unpack_double(d->r));
      return dec_status(d);
    case TM_ATTR_STR:
      return dec_text(d, a);
    case TM_ATTR_AXES:
    case TM_ATTR_INTS:
    case TM_ATTR_SHAPE:
      return dec_ints(d, (tm_attr_kind)kind, a);
    case TM_ATTR_FLOATS:
      return dec_floats(d, a);
    case TM_ATTR_TENSOR:
      return dec_tensor(d, a);
    case TM_ATTR_FUNC:
      return dec_func(d, a);
    default:
      tm_attr_set_int(a, (tm_attr_kind)kind, tm_unpack_int(d->r));
      return dec_status(d);
  }
}

static tm_status dec_ref(struct dec *d, const tm_graph *g, tm_ref *ref) {
  int64_t node = tm_unpack_range(d->r, 0, g->nnode - 1);
  TM_TRY(dec_status(d));
  int64_t out = tm_unpack_range(d->r, 0, g->node[node].nout - 1);
  *ref = (tm_ref){(int32_t)node, (int32_t)out};
  return dec_status(d);
}

static tm_status dec_op(struct dec *d, const tm_op **op) {
  char name[64];
  tm_unpack_cstr(d->r, name, sizeof name);
  TM_TRY(dec_status(d));
  *op = tm_op_find(name);
  if (*op) return TM_OK;
  return tm_fail(d->err, TM_EUNIMPL, "this task has no op \"%.64s\"", name);
}

static tm_status dec_arg(struct dec *d, tm_graph *g, int32_t *node) {
  tm_attr a = {0};
  tm_type t[TM_MAX_OUTPUTS];
  int32_t n = 0;
  (void)tm_unpack_array(d->r, 2, 2);
  bool iterator = tm_unpack_bool(d->r);
  tm_status s = dec_ints(d, TM_ATTR_INTS, &a);
  if (!s) s = tm_attr_types(&a, t, TM_MAX_OUTPUTS, &n, d->err);
  for (int32_t i = 0; i < n && !s; i++)
    s = tm_shape_check(&t[i].shape, (int64_t)tm_dtype_size(t[i].dtype), d->err);
  if (!s && !iterator && n != 1)
    s = tm_fail(d->err, TM_EINVAL, "malformed graph: an argument of %d types", (int)n);
  if (!s) {
    s = iterator ? tm_graph_add_iterator(g, t, n, node) : tm_graph_add_arg(g, t, node);
    if (s) (void)tm_nomem(d->err, "a graph");
  }
  tm_attrs release = {1, {a}};
  tm_attrs_release(&release);
  return s;
}

static tm_status dec_attrs(struct dec *d, tm_attrs *a) {
  uint32_t n = tm_unpack_array(d->r, 0, TM_MAX_ATTRS);
  TM_TRY(dec_status(d));
  for (uint32_t i = 0; i < n; i++) {
    a->n = (int32_t)i + 1;
    TM_TRY(dec_attr(d, &a->a[i]));
  }
  return TM_OK;
}

static tm_status dec_uid(struct dec *d, const tm_op *op, tm_attrs *a) {
  int64_t *uid = d->uid ? tm_op_uid(op, a) : NULL;
  if (!uid) return TM_OK;
  *uid = (int64_t)d->uid(d->ud, (uint64_t)*uid);
  if (*uid) return TM_OK;
  return tm_fail(d->err, TM_EINVAL, "malformed graph: a variable that is not its own");
}

static tm_status dec_node(struct dec *d, tm_graph *g) {
  const tm_op *op;
  tm_ref in[TM_MAX_LIST];
  tm_attrs a = {0};
  int32_t node;
  (void)tm_unpack_array(d->r, 4, 4);
  TM_TRY(dec_op(d, &op));
  uint32_t nin = tm_unpack_array(d->r, 0, 2 * TM_MAX_LIST) / 2;
  for (uint32_t i = 0; i < nin; i++) TM_TRY(dec_ref(d, g, &in[i]));
  TM_TRY(dec_status(d));
  tm_status s;
  if (tm_op_kind(op) == TM_NODE_ARG) {
    s = dec_arg(d, g, &node);
  } else {
    s = dec_attrs(d, &a);
    if (!s) s = dec_uid(d, op, &a);
    if (!s) s = tm_graph_add(g, op, in, (int32_t)nin, &a, &node, d->err);
    tm_attrs_release(&a);
  }
  if (s) return s;
  g->node[node].place = tm_unpack_uint(d->r);
  return dec_status(d);
}

static tm_status dec_outputs(struct dec *d, tm_graph *g) {
  uint32_t n = tm_unpack_array(d->r, 0, MAX_LIST) / 2;
  TM_TRY(dec_status(d));
  tm_ref *out = tm_malloc((n + 1) * sizeof *out);
  if (!out) return tm_nomem(d->err, "a graph");
  tm_status s = TM_OK;
  for (uint32_t i = 0; i < n && !s; i++) {
    s = dec_ref(d, g, &out[i]);
    if (!s && tm_graph_type(g, out[i])->dtype == TM_DTYPE_NONE)
      s = tm_fail(d->err, TM_EINVAL, "malformed graph: an iterator as a result");
  }
  if (!s && tm_graph_finish(g, out, (int32_t)n)) s = tm_nomem(d->err, "a graph");
  tm_free(out, (n + 1) * sizeof *out);
  return s;
}

static tm_status dec_body(struct dec *d, tm_graph *g) {
  g->optimized = tm_unpack_bool(d->r);
  uint32_t n = tm_unpack_array(d->r, 0, (uint32_t)d->left);
  TM_TRY(dec_status(d));
  d->left -= (int32_t)n;
  for (uint32_t i = 0; i < n; i++) TM_TRY(dec_node(d, g));
  return dec_outputs(d, g);
}

static tm_status dec_graph(struct dec *d, tm_graph **out) {
  char name[64];
  *out = NULL;
  if (d->depth == MAX_DEPTH)
    return tm_fail(d->err, TM_EINVAL, "malformed graph: nested deeper than %d",
                   MAX_DEPTH);
  (void)tm_unpack_array(d->r, 5, 5);
  (void)tm_unpack_range(d->r, VERSION, VERSION);
  tm_unpack_cstr(d->r, name, sizeof name);
  TM_TRY(dec_status(d));
  tm_graph *g;
  if (tm_graph_new(name, &g)) return tm_nomem(d->err, "a graph");
  d->depth++;
  tm_status s = dec_body(d, g);
  d->depth--;
  if (s)
    tm_graph_unref(g);
  else
    *out = g;
  return s;
}

tm_status tm_graph_unpack(const void *p, size_t n, tm_graph **out, tm_err *err) {
  return tm_graph_unpack_as(p, n, NULL, NULL, out, err);
}

tm_status tm_graph_unpack_as(const void *p, size_t n,
                             uint64_t (*uid)(void *ud, uint64_t was), void *ud,
                             tm_graph **out, tm_err *err) {
  tm_unpacker r;
  struct dec d = {.r = &r, .err = err, .left = TM_MAX_NODES, .uid = uid, .ud = ud};
  *out = NULL;
  TM_TRY(tm_ops_init(err));
  tm_unpack_init(&r, p, n);
  tm_graph *g;
  TM_TRY(dec_graph(&d, &g));
  tm_status s = tm_unpack_end(&r, err);
  if (s)
    tm_graph_unref(g);
  else
    *out = g;
  return s;
}
