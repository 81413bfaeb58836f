#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "data/node.h"
#include "graph/exec.h"

/*
 * Design.  map and filter run a graph for each element.  The program is made once
 * with the description and shared by all iterators.
 *
 * Invariants:
 *   (1) The graph passed tm_data_graph_check, so it needs no tm_state.
 *   (2) Element n of an iterator since its last fresh start is closure n of the run,
 *       so random ops draw other numbers for each element, and the same ones when
 *       the run is repeated.  Each map and epoch has a seed of its own.
 */
struct map { /* filter too */
  tm_dataset ds;
  tm_graph *graph;
  tm_program *program;
};

struct map_cursor {
  tm_cursor c;
  tm_arg_value *arg; /* inputs' width */
  uint64_t n;        /* elements so far */
  uint64_t place;    /* which map of the dataset */
};

/* --- graphs in datasets --- */
static tm_status graph_check_ops(const tm_graph *g, const char *who, int depth,
                                 tm_err *err) {
  if (depth > 16) return tm_fail(err, TM_EINVAL, "%s: graphs nest too deep", who);
  for (int32_t i = 0; i < g->nnode; i++) {
    const tm_node *n = &g->node[i];
    if (n->op->flags & TM_OP_STATE)
      return tm_fail(err, TM_EINVAL,
                     "%s: the function uses %s; what runs in a dataset has no access "
                     "to variables and iterators",
                     who, n->op->name);
    for (int32_t a = 0; a < n->attrs.n; a++)
      if (n->attrs.a[a].kind == TM_ATTR_FUNC)
        TM_TRY(graph_check_ops(n->attrs.a[a].u.g, who, depth + 1, err));
  }
  return TM_OK;
}

static tm_status graph_check_arg(const tm_graph *g, int32_t i, const tm_type *want,
                                 const char *who, tm_err *err) {
  const tm_arg *a = &g->arg[i];
  if (a->iterator)
    return tm_fail(err, TM_EINVAL, "%s: argument %d of the function is an iterator",
                   who, i + 1);
  const tm_type *t = tm_graph_type(g, (tm_ref){a->node, 0});
  if (t->dtype == want->dtype && tm_shape_compatible(&t->shape, &want->shape))
    return TM_OK;
  char x[128], y[128];
  return tm_fail(err, TM_EINVAL,
                 "%s: argument %d of the function is %s %s, the elements have %s %s",
                 who, i + 1, tm_dtype_name(t->dtype),
                 tm_shape_text(&t->shape, x, sizeof x), tm_dtype_name(want->dtype),
                 tm_shape_text(&want->shape, y, sizeof y));
}

tm_status tm_data_graph_check(const tm_graph *g, const tm_type *types, int32_t n,
                              const char *who, tm_err *err) {
  if (g->narg != n)
    return tm_fail(err, TM_EINVAL,
                   "%s: the function takes %d tensors, elements have %d", who, g->narg,
                   n);
  for (int32_t i = 0; i < n; i++) TM_TRY(graph_check_arg(g, i, &types[i], who, err));
  if (g->nout < 1)
    return tm_fail(err, TM_EINVAL, "%s: the function returns nothing", who);
  for (int32_t i = 0; i < g->nout; i++)
    if (tm_graph_type(g, g->out[i])->dtype == TM_DTYPE_NONE)
      return tm_fail(err, TM_EINVAL, "%s: result %d is not a tensor", who, i + 1);
  return graph_check_ops(g, who, 0, err);
}

void tm_data_pack_graph(tm_packer *w, const tm_graph *g) {
  tm_buf b = TM_BUF_INIT(TM_DATA_GRAPH_BYTES);
  tm_status s = tm_graph_pack(g, &b);
  if (s == TM_OK)
    tm_pack_bin(w, b.data, b.len);
  else if (w->status == TM_OK)
    w->status = s;
  tm_buf_release(&b);
}

tm_status tm_data_unpack_graph(tm_unpacker *r, tm_graph **out, tm_err *err) {
  size_t n = 0;
  const void *p = tm_unpack_bin(r, TM_DATA_GRAPH_BYTES, &n);
  *out = NULL;
  if (r->status != TM_OK) return tm_fail(err, TM_EINVAL, "a graph is missing");
  return tm_graph_unpack(p, n, out, err);
}

/* --- what map and filter share --- */
static void map_release(tm_dataset *ds) {
  struct map *m = (struct map *)ds;
  if (m->program) tm_program_unref(m->program);
  tm_graph_unref(m->graph);
}

static void map_pack(const tm_dataset *ds, tm_packer *w, tm_err *err) {
  (void)err;
  tm_data_pack_graph(w, ((const struct map *)ds)->graph);
}

static tm_status map_program(tm_dataset **ds, tm_graph *g, tm_err *err) {
  struct map *m = (struct map *)*ds;
  m->graph = tm_graph_ref(g);
  tm_status s = tm_program_new(g, &m->program, err);
  if (s == TM_OK) return TM_OK;
  tm_dataset_unref(*ds);
  *ds = NULL;
  return s;
}

static tm_status map_open(tm_cursor *c, tm_err *err) {
  struct map_cursor *m = (struct map_cursor *)c;
  m->place = c->env->maps++;
  m->arg = tm_calloc((size_t)c->ds->in[0]->width, sizeof *m->arg);
  return m->arg ? TM_OK : tm_nomem(err, c->ds->k->name);
}

static void map_close(tm_cursor *c) {
  struct map_cursor *m = (struct map_cursor *)c;
  tm_free(m->arg, (size_t)c->ds->in[0]->width * sizeof *m->arg);
}

static void map_reset(tm_cursor *c, bool fresh) {
  if (fresh) ((struct map_cursor *)c)->n = 0;
  tm_cursor_reset(c->in[0], fresh);
}

/* Run the graph on element r; outs gets a reference per output. */
static tm_status map_run(struct map_cursor *m, const tm_row *r, tm_tensor **outs,
                         tm_err *err) {
  const struct map *d = (const struct map *)m->c.ds;
  const tm_cursor_env *e = m->c.env;
  int32_t n = d->ds.in[0]->width, k = 0;
  tm_status s = TM_OK;
  for (; k < n && s == TM_OK; k++) {
    m->arg[k].t = NULL;
    s = tm_row_tensor(r, k, &m->arg[k].t);
  }
  if (s == TM_OK) {
    tm_run_env run = {.seed = e->base ^ tm_mix64((e->env.epoch << 16) + m->place),
                      .closure = m->n++,
                      .worker = e->env.worker < 0 ? 0 : e->env.worker,
                      .cancel = m->c.cancel,
                      .threads = 1};
    s = tm_program_run(d->program, m->arg, n, NULL, &run, outs, err);
  } else {
    s = tm_nomem(err, d->ds.k->name);
  }
  for (int32_t i = 0; i < k; i++) tm_tensor_unref(m->arg[i].t);
  return s;
}

/* The input's elements, each of which the function would have turned into one. */
static tm_status map_pass(tm_cursor *c, int64_t n, int64_t *done, tm_err *err) {
  tm_status s = tm_cursor_pass(c->in[0], n, done, err);
  ((struct map_cursor *)c)->n += (uint64_t)*done;
  return s;
}

/* The ops in order: names and constants of a function may differ from run to run. */
static uint64_t map_mark(const tm_dataset *ds) {
  const tm_graph *g = ((const struct map *)ds)->graph;
  uint64_t h = (uint64_t)g->nout;
  for (int32_t i = 0; i < g->nnode; i++)
    h = tm_hash64(g->node[i].op->name, strlen(g->node[i].op->name), h);
  return h;
}

static bool map_asks(const tm_graph *g) {
  for (int32_t i = 0; i < g->nnode; i++) {
    const tm_node *n = &g->node[i];
    if (strcmp(n->op->name, "worker_index") == 0) return true;
    for (int32_t k = 0; k < n->attrs.n; k++)
      if (n->attrs.a[k].kind == TM_ATTR_FUNC && map_asks(n->attrs.a[k].u.g))
        return true;
  }
  return false;
}

static bool map_by_worker(const tm_dataset *ds) {
  return map_asks(((const struct map *)ds)->graph);
}

/* --- map --- */
static tm_status map_unpack(tm_unpacker *r, tm_dataset **in, int32_t nin,
                            tm_dataset **out, tm_err *err) {
  tm_graph *g;
  (void)nin;
  TM_TRY(tm_data_unpack_graph(r, &g, err));
  tm_status s = tm_data_map(in[0], g, out, err);
  tm_graph_unref(g);
  return s;
}

static tm_status map_next(tm_cursor *c, tm_row *out, tm_err *err) {
  tm_row r = {NULL, 0};
  TM_TRY(tm_cursor_next(c->in[0], &r, err));
  tm_block *b = NULL;
  tm_status s = tm_block_new(c->ds->width, TM_ROW_WHOLE, &b);
  if (s == TM_OK)
    s = map_run((struct map_cursor *)c, &r, b->t, err);
  else
    s = tm_nomem(err, "map");
  tm_row_release(&r);
  if (s == TM_OK) {
    *out = (tm_row){b, TM_ROW_WHOLE};
    return TM_OK;
  }
  tm_block_unref(b);
  /* The function's own out_of_range must not look like the end of the data. */
  return s == TM_ERANGE ? tm_err_prefix(err, TM_EINVAL, "map") : s;
}

const tm_data_class tm_class_map = {
    .name = "map",
    .code = 10,
    .nin = 1,
    .size = sizeof(struct map),
    .cursor_size = sizeof(struct map_cursor),
    .release = map_release,
    .pack = map_pack,
    .unpack = map_unpack,
    .open = map_open,
    .next = map_next,
    .pass = map_pass,
    .mark = map_mark,
    .by_worker = map_by_worker,
    .reset = map_reset,
    .close = map_close,
};

tm_status tm_data_map(tm_dataset *in, tm_graph *g, tm_dataset **out, tm_err *err) {
  *out = NULL;
  TM_TRY(tm_data_graph_check(g, in->types, in->width, "map", err));
  TM_TRY(tm_dataset_make(&tm_class_map, &in, 1, g->nout, out, err));
  for (int32_t i = 0; i < g->nout; i++) (*out)->types[i] = *tm_graph_type(g, g->out[i]);
  (*out)->card = in->card;
  return map_program(out, g, err);
}

/* --- filter --- */
static tm_status filter_unpack(tm_unpacker *r, tm_dataset **in, int32_t nin,
                               tm_dataset **out, tm_err *err) {
  tm_graph *g;
  (void)nin;
  TM_TRY(tm_data_unpack_graph(r, &g, err));
  tm_status s = tm_data_filter(in[0], g, out, err);
  tm_graph_unref(g);
  return s;
}

static tm_status filter_next(tm_cursor *c, tm_row *out, tm_err *err) {
  for (;;) {
    if (tm_cancelled(c->cancel))
      return tm_fail(err, TM_ECANCELLED, "filter: cancelled");
    tm_row r = {NULL, 0};
    tm_tensor *t = NULL;
    TM_TRY(tm_cursor_next(c->in[0], &r, err));
    tm_status s = map_run((struct map_cursor *)c, &r, &t, err);
    if (s == TM_OK && tm_view_count(&t->v) != 1)
      s = tm_fail(err, TM_EINVAL, "filter: the function's result is not a scalar");
    bool keep = s == TM_OK && *(const uint8_t *)t->v.data;
    if (s == TM_OK) tm_tensor_unref(t);
    if (keep) {
      *out = r;
      return TM_OK;
    }
    tm_row_release(&r);
    if (s != TM_OK) return s == TM_ERANGE ? tm_err_prefix(err, TM_EINVAL, "filter") : s;
  }
}

const tm_data_class tm_class_filter = {
    .name = "filter",
    .code = 11,
    .nin = 1,
    .same = true,
    .size = sizeof(struct map),
    .cursor_size = sizeof(struct map_cursor),
    .release = map_release,
    .pack = map_pack,
    .unpack = filter_unpack,
    .open = map_open,
    .next = filter_next,
    .mark = map_mark,
    .by_worker = map_by_worker,
    .reset = map_reset,
    .close = map_close,
};

tm_status tm_data_filter(tm_dataset *in, tm_graph *g, tm_dataset **out, tm_err *err) {
  *out = NULL;
  TM_TRY(tm_data_graph_check(g, in->types, in->width, "filter", err));
  const tm_type *t = tm_graph_type(g, g->out[0]);
  if (g->nout != 1 || t->dtype != TM_BOOL || t->shape.rank != 0)
    return tm_fail(err, TM_EINVAL, "filter: the function returns one bool scalar");
  TM_TRY(tm_dataset_like(&tm_class_filter, in, out, err));
  (*out)->card = TM_DATA_UNKNOWN;
  return map_program(out, g, err);
}
