#include "graph/bags.h"

#include <string.h>

#include "base/mem.h"
#include "graph/nodes.h"

/*
 * Design.  Runs after combine.c, on what it made.  A combined gather that is only
 * multiplied by something thin need not be combined at its full width:
 *
 *     x = gather_variable(ids; combine)           u, places, count = unique_rows(ids)
 *     z = matmul(x, w)                            rows = gather_unique_variable(u,
 * count) dw = matmul(x, dz; transpose_a)        =>   z  = bag_matmul(rows, places,
 * count, w) dw = bag_matmul_t(rows, ..., dz)
 *
 * and likewise the gradient on its way to an optimizer:
 *
 *     apply_optimizer_rows(ids,                   apply_optimizer_unique(u,
 *         matmul(dz, w; transpose_b),        =>       bag_matmul_rows(dz, places,
 * count, lr, t; combine)                                 w), lr, t, count)
 *
 * Work goes with distinct rows and with the thin side.  Sums are made in another order,
 * so numbers may differ in the last bits.  The two are independent of each other, and
 * each happens only if the wide value has no other use.
 */
enum { BAGS_THIN = 8 }; /* with more columns a product costs more than the combining */

typedef enum bags_role {
  BAGS_NONE,
  BAGS_GATHER,
  BAGS_PRODUCT,   /* matmul(x, w) */
  BAGS_PRODUCT_T, /* matmul(x, dz; transpose_a) */
  BAGS_GRADIENT,  /* matmul(dz, w; transpose_b) */
  BAGS_LIKE,      /* sum_like(gradient, x), on its way to the apply */
  BAGS_APPLY
} bags_role;

struct bags {
  const tm_graph *src;
  tm_graph *dst;
  uint8_t *role;
  int32_t *of;     /* product, like -> its gather; apply -> its gradient; else -1 */
  int32_t *user;   /* gradient, like -> the only node that may use it; else -1 */
  bool *bad;       /* stays as it is */
  int32_t *to;     /* node -> node in dst */
  int32_t *unique; /* gather, apply -> its unique_rows in dst */
  tm_err *err;
};

static bool bags_is(const tm_node *n, const char *op) {
  return strcmp(n->op->name, op) == 0;
}

static bool bags_combines(const tm_node *n, int32_t attr) {
  return strcmp(n->attrs.a[attr].u.s, "none") != 0;
}
static bool bags_mean(const tm_node *n, int32_t attr) {
  return strcmp(n->attrs.a[attr].u.s, "mean") == 0;
}

/* --- what is what --- */

static const tm_shape *bags_shape(const struct bags *bs, const tm_node *n, int32_t k) {
  return &tm_graph_type(bs->src, n->in[k])->shape;
}

static bool bags_matmul(const struct bags *bs, const tm_node *n, bool ta, bool tb) {
  if (!bags_is(n, "matmul") || n->attrs.a[0].u.b != ta || n->attrs.a[1].u.b != tb)
    return false;
  const tm_shape *b = bags_shape(bs, n, 1);
  if (bags_shape(bs, n, 0)->rank != 2 || b->rank != 2) return false;
  return b->dim[1] >= 1 && b->dim[1] <= BAGS_THIN;
}

static void bags_find_apply(struct bags *bs, int32_t i) {
  int32_t d = bs->src->node[i].in[1].node, like = -1;
  if (!bags_combines(&bs->src->node[i], 7)) return;
  if (bs->role[d] == BAGS_LIKE) {
    like = d;
    d = bs->src->node[d].in[0].node;
  }
  if (bs->role[d] != BAGS_NONE) return;
  if (!bags_matmul(bs, &bs->src->node[d], false, true)) return;
  bs->role[i] = BAGS_APPLY;
  bs->of[i] = d;
  bs->role[d] = BAGS_GRADIENT;
  bs->user[d] = like >= 0 ? like : i;
  if (like >= 0 && bs->user[like] < 0) bs->user[like] = i;
}

static void bags_find(struct bags *bs, int32_t i) {
  const tm_node *n = &bs->src->node[i];
  if (bags_is(n, "gather_variable")) {
    if (!bags_combines(n, 4) || bags_shape(bs, n, 0)->rank != 2) return;
    if (n->out[0].shape.rank == 2) bs->role[i] = BAGS_GATHER;
  } else if (bags_is(n, "apply_optimizer_rows")) {
    bags_find_apply(bs, i);
  } else if (bags_is(n, "sum_like")) {
    int32_t x = n->in[1].node;
    if (bs->role[x] != BAGS_GATHER) return;
    bs->role[i] = BAGS_LIKE;
    bs->of[i] = x;
  } else if (bags_is(n, "matmul")) {
    int32_t x = n->in[0].node;
    if (bs->role[x] != BAGS_GATHER || n->in[1].node == x) return;
    if (bags_matmul(bs, n, false, false)) bs->role[i] = BAGS_PRODUCT;
    if (bags_matmul(bs, n, true, false)) bs->role[i] = BAGS_PRODUCT_T;
    if (bs->role[i] != BAGS_NONE) bs->of[i] = x;
  }
}

static bool bags_good_use(const struct bags *bs, int32_t i, int32_t k, int32_t x) {
  switch ((bags_role)bs->role[x]) {
    case BAGS_GATHER:
      return bs->of[i] == x && k == (bs->role[i] == BAGS_LIKE ? 1 : 0);
    case BAGS_LIKE:
      return bs->user[x] == i && k == 1;
    case BAGS_GRADIENT:
      return bs->user[x] == i && k == (bs->role[i] == BAGS_LIKE ? 0 : 1);
    default:
      return true;
  }
}

static void bags_uses(struct bags *bs) {
  const tm_graph *g = bs->src;
  for (int32_t i = 0; i < g->nnode; i++)
    for (int32_t k = 0; k < g->node[i].nin; k++)
      if (!bags_good_use(bs, i, k, g->node[i].in[k].node))
        bs->bad[g->node[i].in[k].node] = true;
  for (int32_t i = 0; i < g->nout; i++) bs->bad[g->out[i].node] = true;
}

/* An apply stays with its gradient; a sum_like goes only if both the gather, which it
 * uses, and the apply, which uses it, are replaced.  (It changes nothing then: all uses
 * of the gather being products, the gradient is that of a product.) */
static bool bags_settle(struct bags *bs, int32_t i) {
  if (bs->role[i] == BAGS_APPLY) {
    int32_t d = bs->of[i], like = bs->user[d];
    if (bs->bad[i]) return false;
    return bs->bad[i] = bs->bad[d] || (like != i && bs->bad[like]);
  }
  if (bs->role[i] != BAGS_LIKE) return false;
  int32_t x = bs->of[i];
  bool bad = bs->bad[i] || bs->bad[x] || bs->user[i] < 0 || bs->bad[bs->user[i]];
  bool changed = bad && !(bs->bad[i] && bs->bad[x]);
  if (bad) bs->bad[i] = bs->bad[x] = true;
  return changed;
}

static bool bags_any(struct bags *bs) {
  bool any = false, changed = true;
  while (changed) {
    changed = false;
    for (int32_t i = 0; i < bs->src->nnode; i++)
      changed = bags_settle(bs, i) || changed;
  }
  for (int32_t i = 0; i < bs->src->nnode; i++)
    if (bs->role[i] == BAGS_GATHER || bs->role[i] == BAGS_APPLY)
      any = any || !bs->bad[i];
  return any;
}

/* --- the new graph --- */

static tm_ref bags_ref(const struct bags *bs, tm_ref r) {
  return (tm_ref){bs->to[r.node], r.out};
}

static tm_status bags_add(struct bags *bs, int32_t i, const char *op, const tm_ref *in,
                          int32_t nin, const tm_attrs *attrs, int32_t *node) {
  TM_TRY(tm_graph_add(bs->dst, tm_op_find(op), in, nin, attrs, node, bs->err));
  bs->dst->node[*node].place = bs->src->node[i].place;
  return TM_OK;
}

static tm_status bags_unique(struct bags *bs, int32_t i, tm_ref ids) {
  static const tm_attrs none = {0};
  tm_ref in = bags_ref(bs, ids);
  return bags_add(bs, i, "unique_rows", &in, 1, &none, &bs->unique[i]);
}

static tm_status bags_gather(struct bags *bs, int32_t i) {
  const tm_node *n = &bs->src->node[i];
  tm_attrs a = n->attrs; /* borrowed, but for `combine` */
  a.n = 4;
  TM_TRY(bags_unique(bs, i, n->in[0]));
  tm_ref in[2] = {{bs->unique[i], 0}, {bs->unique[i], 2}};
  return bags_add(bs, i, "gather_unique_variable", in, 2, &a, &bs->to[i]);
}

static tm_status bags_product(struct bags *bs, int32_t i, const char *op) {
  const tm_node *n = &bs->src->node[i];
  int32_t x = bs->of[i], u = bs->unique[x];
  tm_attrs a = {.n = 1};
  tm_ref in[4] = {{bs->to[x], 0}, {u, 1}, {u, 2}, bags_ref(bs, n->in[1])};
  tm_attr_set_bool(&a.a[0], bags_mean(&bs->src->node[x], 4));
  return bags_add(bs, i, op, in, 4, &a, &bs->to[i]);
}

/* The ids of an apply are those of a gather as a vector: then its unique_rows will do,
 * since an equal node merges with it afterwards. */
static tm_ref bags_ids(const struct bags *bs, tm_ref ids) {
  for (tm_ref r = ids;;) {
    const tm_node *n = &bs->src->node[r.node];
    for (int32_t i = 0; i < bs->src->nnode; i++) {
      const tm_node *m = &bs->src->node[i];
      if (bs->role[i] == BAGS_GATHER && !bs->bad[i] && m->in[0].node == r.node &&
          m->in[0].out == r.out)
        return r;
    }
    if (!bags_is(n, "reshape") && !bags_is(n, "cast")) return ids;
    tm_dtype t = tm_graph_type(bs->src, n->in[0])->dtype;
    if (t != TM_I64 && t != TM_I32) return ids;
    r = n->in[0];
  }
}

static tm_status bags_apply(struct bags *bs, int32_t i) {
  const tm_node *n = &bs->src->node[i], *d = &bs->src->node[bs->of[i]];
  int32_t rows;
  tm_attrs mean = {.n = 1}, a = n->attrs; /* borrowed, but for `combine` */
  a.n = 7;
  TM_TRY(bags_unique(bs, i, bags_ids(bs, n->in[0])));
  int32_t u = bs->unique[i];
  tm_ref in[4] = {bags_ref(bs, d->in[0]), {u, 1}, {u, 2}, bags_ref(bs, d->in[1])};
  tm_attr_set_bool(&mean.a[0], bags_mean(n, 7));
  TM_TRY(bags_add(bs, i, "bag_matmul_rows", in, 4, &mean, &rows));
  tm_ref to[5] = {
      {u, 0}, {rows, 0}, bags_ref(bs, n->in[2]), bags_ref(bs, n->in[3]), {u, 2}};
  return bags_add(bs, i, "apply_optimizer_unique", to, 5, &a, &bs->to[i]);
}

static tm_status bags_copy(struct bags *bs, int32_t i) {
  const tm_node *n = &bs->src->node[i];
  tm_ref in[TM_MAX_LIST];
  if (tm_node_kind_of(n) == TM_NODE_ARG) {
    const tm_arg *arg = bs->src->arg;
    while (arg->node != i) arg++;
    return arg->iterator
               ? tm_graph_add_iterator(bs->dst, arg->elem, arg->nelem, &bs->to[i])
               : tm_graph_add_arg(bs->dst, &n->out[0], &bs->to[i]);
  }
  for (int32_t k = 0; k < n->nin; k++) in[k] = bags_ref(bs, n->in[k]);
  TM_TRY(tm_graph_add(bs->dst, n->op, in, n->nin, &n->attrs, &bs->to[i], bs->err));
  bs->dst->node[bs->to[i]].place = n->place;
  return TM_OK;
}

/* The gradient's own node is copied, and dead when its apply was replaced. */
static tm_status bags_node(struct bags *bs, int32_t i) {
  switch ((bags_role)bs->role[i]) {
    case BAGS_GATHER:
      return bs->bad[i] ? bags_copy(bs, i) : bags_gather(bs, i);
    case BAGS_PRODUCT:
      return bs->bad[bs->of[i]] ? bags_copy(bs, i) : bags_product(bs, i, "bag_matmul");
    case BAGS_PRODUCT_T:
      return bs->bad[bs->of[i]] ? bags_copy(bs, i)
                                : bags_product(bs, i, "bag_matmul_t");
    case BAGS_APPLY:
      return bs->bad[i] ? bags_copy(bs, i) : bags_apply(bs, i);
    case BAGS_LIKE: /* its only user looks through it */
      if (bs->bad[i]) break;
      bs->to[i] = bs->to[bs->src->node[i].in[0].node];
      return TM_OK;
    case BAGS_GRADIENT:
    case BAGS_NONE:
      break;
  }
  return bags_copy(bs, i);
}

static tm_status bags_build(struct bags *bs) {
  const tm_graph *g = bs->src;
  TM_TRY(tm_graph_new(g->name, &bs->dst));
  for (int32_t i = 0; i < g->nnode; i++) TM_TRY(bags_node(bs, i));
  size_t bytes = ((size_t)g->nout + 1) * sizeof(tm_ref);
  tm_ref *out = tm_malloc(bytes);
  if (!out) return TM_ENOMEM;
  for (int32_t i = 0; i < g->nout; i++) out[i] = bags_ref(bs, g->out[i]);
  tm_status s = tm_graph_finish(bs->dst, out, g->nout);
  tm_free(out, bytes);
  return s;
}

static tm_status bags_run(struct bags *bs) {
  size_t n = (size_t)bs->src->nnode + 1;
  bs->role = tm_calloc(n, sizeof *bs->role);
  bs->of = tm_calloc(n, sizeof *bs->of);
  bs->user = tm_calloc(n, sizeof *bs->user);
  bs->bad = tm_calloc(n, sizeof *bs->bad);
  bs->to = tm_calloc(n, sizeof *bs->to);
  bs->unique = tm_calloc(n, sizeof *bs->unique);
  if (!bs->role || !bs->of || !bs->user || !bs->bad || !bs->to || !bs->unique)
    return TM_ENOMEM;
  for (int32_t i = 0; i < bs->src->nnode; i++) bs->of[i] = bs->user[i] = -1;
  for (int32_t i = 0; i < bs->src->nnode; i++) bags_find(bs, i);
  bags_uses(bs);
  return bags_any(bs) ? bags_build(bs) : TM_OK;
}

tm_status tm_graph_bags(const tm_graph *g, tm_graph **out, tm_err *err) {
  struct bags bs = {.src = g, .err = err};
  size_t n = (size_t)g->nnode + 1;
  *out = NULL;
  tm_status s = bags_run(&bs);
  tm_free(bs.role, n * sizeof *bs.role);
  tm_free(bs.of, n * sizeof *bs.of);
  tm_free(bs.user, n * sizeof *bs.user);
  tm_free(bs.bad, n * sizeof *bs.bad);
  tm_free(bs.to, n * sizeof *bs.to);
  tm_free(bs.unique, n * sizeof *bs.unique);
  if (s)
    tm_graph_unref(bs.dst);
  else
    *out = bs.dst;
  return s;
}
