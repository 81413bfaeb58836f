#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "graph/nodes.h"

/*
 * Design.  Ops that touch the outside: variables, slots, iterators.  They have no
 * kernel: the door (apply.c) and the executor (step.c) turn them into requests of
 * graph/state.h with tm_node_read and tm_node_update.  worker_index is an ordinary op
 * whose kernel asks the environment (flagged random, so that it is never folded).
 *
 * A variable is named by `uid`; its dtype and shape are attributes too, so inference
 * needs no lookup.  `shard` is -1 for the whole variable, else one shard of it, whose
 * shape `shape` then is.
 *
 * Gradients of read_variable and gather_variable go to the variable, not to an input;
 * the tape knows them (tape.c).
 *
 * `combine` ("none", "sum", "mean") of gather_variable sums groups of rows along the
 * last axis of ids; that of apply_optimizer_rows is its gradient: one row of values for
 * each group of ids.  The pass combine.c puts them in for a reduction of a gather, so
 * that repeated rows need not be spread out in memory.
 *
 * Attribute positions are fixed by these enums.
 */
enum { A_UID, A_DTYPE, A_SHAPE };                        /* all of them begin so */
enum { A_READ_SHARD = 3, A_MODE = 3, A_MODE_SHARD = 4 }; /* reads; assign, scatter */
enum { A_GATHER_COMBINE = 4, A_APPLY_COMBINE = 7 };
enum { A_SLOT_OPT = 3, A_SLOT_NAME = 4 }; /* read_slot */
enum { A_RULE = 3, A_OPT = 4, A_HYPER = 5, A_APPLY_SHARD = 6 };

static tm_type state_type(const tm_attrs *a) {
  tm_type t;
  t.dtype = (tm_dtype)a->a[A_DTYPE].u.i;
  t.shape = tm_shape_of(a->a[A_SHAPE].n, a->a[A_SHAPE].u.is);
  return t;
}

static tm_status state_check(tm_infer *c, tm_type *t) {
  *t = state_type(c->attrs);
  if (!tm_shape_known(&t->shape))
    return tm_fail(c->err, TM_EINVAL, "\"shape\" of a variable must be fully known");
  return TM_OK;
}

static tm_status state_value(tm_infer *c, const char *what, const tm_type *got,
                             const tm_type *want) {
  char a[128], b[128];
  if (got->dtype != want->dtype)
    return tm_fail(c->err, TM_EINVAL, "%s is %s, the variable %s; use cast", what,
                   tm_dtype_name(got->dtype), tm_dtype_name(want->dtype));
  if (!tm_shape_compatible(&got->shape, &want->shape))
    return tm_fail(c->err, TM_EINVAL, "%s has shape %s, the variable needs %s", what,
                   tm_shape_text(&got->shape, a, sizeof a),
                   tm_shape_text(&want->shape, b, sizeof b));
  return TM_OK;
}

/* Shape of the rows that ids pick: ids.shape + shape[1:]. */
static tm_status state_rows(tm_infer *c, const tm_type *ids, const tm_type *var,
                            tm_type *out) {
  if (ids->dtype != TM_I64 && ids->dtype != TM_I32)
    return tm_fail(c->err, TM_EINVAL, "ids are %s, must be int64 or int32",
                   tm_dtype_name(ids->dtype));
  if (var->shape.rank < 1)
    return tm_fail(c->err, TM_EINVAL, "a scalar variable has no rows");
  if (ids->shape.rank + var->shape.rank - 1 > TM_MAX_RANK)
    return tm_fail(c->err, TM_EINVAL, "the rows would have more than %d axes",
                   TM_MAX_RANK);
  out->dtype = var->dtype;
  out->shape = ids->shape;
  for (int32_t i = 1; i < var->shape.rank; i++)
    out->shape.dim[out->shape.rank++] = var->shape.dim[i];
  return TM_OK;
}

/* --- reads --- */

static tm_status infer_read(tm_infer *c) {
  c->nout = 1;
  return state_check(c, &c->out[0]);
}

/* 0: none, 1: sum, 2: mean, -1: something else. */
static int state_combine(const tm_attrs *a, int at) {
  static const char *const names[] = {"none", "sum", "mean"};
  for (int i = 0; i < (int)TM_COUNT(names); i++)
    if (strcmp(a->a[at].u.s, names[i]) == 0) return i;
  return -1;
}

static tm_status state_check_combine(tm_infer *c, int at, const tm_type *var,
                                     int *combine) {
  *combine = state_combine(c->attrs, at);
  if (*combine < 0)
    return tm_fail(c->err, TM_EINVAL, "combine is \"%s\", must be none, sum or mean",
                   c->attrs->a[at].u.s);
  if (*combine > 0 && !tm_dtype_is_float(var->dtype))
    return tm_fail(c->err, TM_EINVAL, "rows of %s cannot be combined",
                   tm_dtype_name(var->dtype));
  return TM_OK;
}

static tm_status infer_gather(tm_infer *c) {
  tm_type var, ids = c->in[0];
  int combine;
  TM_TRY(state_check(c, &var));
  TM_TRY(state_check_combine(c, A_GATHER_COMBINE, &var, &combine));
  c->nout = 1;
  if (combine) {
    if (ids.shape.rank < 1 || ids.shape.dim[ids.shape.rank - 1] == 0)
      return tm_fail(c->err, TM_EINVAL, "there are no ids to combine the rows of");
    ids.shape.rank--;
  }
  return state_rows(c, &ids, &var, &c->out[0]);
}

/* "ids, count; ..." with what unique_rows gives. */
static tm_status state_check_count(tm_infer *c, int32_t i) {
  const tm_type *n = &c->in[i];
  if (n->dtype == TM_I64 && n->shape.rank == 0) return TM_OK;
  return tm_fail(c->err, TM_EINVAL, "the count must be an int64 scalar");
}

static tm_status infer_gather_unique(tm_infer *c) {
  tm_type var;
  TM_TRY(state_check(c, &var));
  TM_TRY(state_check_count(c, 1));
  c->nout = 1;
  return state_rows(c, &c->in[0], &var, &c->out[0]);
}

void tm_node_read(const tm_op *op, const tm_attrs *a, const tm_view *const *in,
                  tm_read *rd) {
  memset(rd, 0, sizeof *rd);
  rd->uid = (uint64_t)a->a[A_UID].u.i;
  rd->shard = -1;
  if (strcmp(op->name, "read_slot") == 0) {
    rd->kind = TM_READ_SLOT;
    rd->optimizer = (uint64_t)a->a[A_SLOT_OPT].u.i;
    rd->slot = a->a[A_SLOT_NAME].u.s;
    return;
  }
  bool unique = strcmp(op->name, "gather_unique_variable") == 0;
  bool rows = unique || strcmp(op->name, "gather_variable") == 0;
  rd->kind = rows ? TM_READ_ROWS : TM_READ_DENSE;
  rd->shard = (int32_t)a->a[A_READ_SHARD].u.i;
  if (!rows) return;
  rd->ids = in[0];
  if (unique && in[1]) rd->nunique = tm_view_get_i64(in[1], 0);
  if (unique) return;
  int combine = state_combine(a, A_GATHER_COMBINE);
  rd->mean = combine == 2;
  if (combine) rd->fan = (int32_t)in[0]->shape.dim[in[0]->shape.rank - 1];
}

/* --- updates --- */

/* The last two: once in a round (state.h). */
enum { MODE_SET, MODE_ADD, MODE_SUB, MODE_ADD_ONCE, MODE_SUB_ONCE };

static int state_mode(const tm_attrs *a) {
  static const char *const names[] = {"set", "add", "sub", "add_once", "sub_once"};
  for (int i = 0; i < (int)TM_COUNT(names); i++)
    if (strcmp(a->a[A_MODE].u.s, names[i]) == 0) return i;
  return -1;
}

static tm_status state_check_mode(tm_infer *c, const tm_type *var) {
  int mode = state_mode(c->attrs);
  if (mode < 0)
    return tm_fail(c->err, TM_EINVAL, "mode is \"%s\", must be set, add or sub (_once)",
                   c->attrs->a[A_MODE].u.s);
  if (mode > 0 && !tm_dtype_is_number(var->dtype))
    return tm_fail(c->err, TM_EINVAL, "a variable of %s cannot be added to",
                   tm_dtype_name(var->dtype));
  return TM_OK;
}

static tm_status infer_assign(tm_infer *c) {
  tm_type var;
  TM_TRY(state_check(c, &var));
  TM_TRY(state_check_mode(c, &var));
  return state_value(c, "the value", &c->in[0], &var);
}

static tm_status state_check_rows(tm_infer *c, const tm_type *var) {
  tm_type want;
  const tm_type *ids = &c->in[0];
  if (ids->dtype != TM_I64 || ids->shape.rank != 1)
    return tm_fail(c->err, TM_EINVAL, "ids must be an int64 vector");
  TM_TRY(state_rows(c, ids, var, &want));
  return state_value(c, "the value of rows", &c->in[1], &want);
}

static tm_status infer_scatter(tm_infer *c) {
  tm_type var;
  TM_TRY(state_check(c, &var));
  TM_TRY(state_check_mode(c, &var));
  return state_check_rows(c, &var);
}

static tm_status state_check_step(tm_infer *c, const tm_type *var, int32_t lr) {
  const tm_type *t = &c->in[lr];
  if (!tm_dtype_is_float(var->dtype))
    return tm_fail(c->err, TM_EINVAL, "a variable of %s cannot be trained",
                   tm_dtype_name(var->dtype));
  if (!tm_dtype_is_float(t[0].dtype) || t[0].shape.rank != 0)
    return tm_fail(c->err, TM_EINVAL, "the learning rate must be a float scalar");
  if (t[1].dtype != TM_I64 || t[1].shape.rank != 0)
    return tm_fail(c->err, TM_EINVAL, "the step number must be an int64 scalar");
  if (c->attrs->a[A_HYPER].n >= TM_MAX_HYPER)
    return tm_fail(c->err, TM_EINVAL, "a rule takes at most %d numbers",
                   TM_MAX_HYPER - 1);
  return TM_OK;
}

static tm_status infer_apply(tm_infer *c) {
  tm_type var;
  TM_TRY(state_check(c, &var));
  TM_TRY(state_check_step(c, &var, 1));
  return state_value(c, "the gradient", &c->in[0], &var);
}

/* Combined: one row a group of ids. */
static tm_status state_check_groups(tm_infer *c, const tm_type *var) {
  tm_type want = *var;
  int64_t n = c->in[0].shape.dim[0],
          m = c->in[1].shape.rank ? c->in[1].shape.dim[0] : 1;
  if (c->in[0].dtype != TM_I64 || c->in[0].shape.rank != 1)
    return tm_fail(c->err, TM_EINVAL, "ids must be an int64 vector");
  if (var->shape.rank < 1)
    return tm_fail(c->err, TM_EINVAL, "a scalar variable has no rows");
  want.shape.dim[0] = -1;
  TM_TRY(state_value(c, "the value of rows", &c->in[1], &want));
  if (n >= 0 && m >= 0 && (m == 0 ? n != 0 : n % m != 0))
    return tm_fail(c->err, TM_EINVAL,
                   "%" PRId64 " ids do not make %" PRId64 " equal groups", n, m);
  return TM_OK;
}

static tm_status infer_apply_rows(tm_infer *c) {
  tm_type var;
  int combine;
  TM_TRY(state_check(c, &var));
  TM_TRY(state_check_step(c, &var, 2));
  TM_TRY(state_check_combine(c, A_APPLY_COMBINE, &var, &combine));
  return combine ? state_check_groups(c, &var) : state_check_rows(c, &var);
}

static tm_status infer_apply_unique(tm_infer *c) {
  tm_type var;
  TM_TRY(state_check(c, &var));
  TM_TRY(state_check_step(c, &var, 2));
  TM_TRY(state_check_count(c, 4));
  return state_check_rows(c, &var);
}

static tm_status update_rule(const tm_attrs *a, const tm_view *lr, const tm_view *t,
                             tm_update *up, tm_err *err) {
  const tm_attr *h = &a->a[A_HYPER];
  up->rule = a->a[A_RULE].u.s;
  up->optimizer = (uint64_t)a->a[A_OPT].u.i;
  up->hyper[0] = tm_view_get_f64(lr, 0);
  if (h->n) memcpy(up->hyper + 1, h->u.fs, (size_t)h->n * sizeof *h->u.fs);
  up->nhyper = h->n + 1;
  up->t = tm_view_get_i64(t, 0);
  if (up->t < 1)
    return tm_fail(err, TM_EINVAL, "the step number is %" PRId64 ", counts from 1",
                   up->t);
  return TM_OK;
}

/* Rows whose gradient several ids share, summed or averaged. */
static void update_fan(const tm_attrs *a, tm_update *up) {
  int combine = state_combine(a, A_APPLY_COMBINE);
  up->mean = combine == 2;
  if (combine && up->value.shape.dim[0] > 0)
    up->fan = (int32_t)(tm_view_count(up->ids) / up->value.shape.dim[0]);
}

tm_status tm_node_update(const tm_op *op, const tm_attrs *a, const tm_view *const *in,
                         tm_update *up, tm_err *err) {
  memset(up, 0, sizeof *up);
  up->uid = (uint64_t)a->a[A_UID].u.i;
  bool apply = strncmp(op->name, "apply", 5) == 0;
  up->shard = (int32_t)a->a[apply ? A_APPLY_SHARD : A_MODE_SHARD].u.i;
  bool unique = strcmp(op->name, "apply_optimizer_unique") == 0;
  bool rows = unique || strcmp(op->name, "scatter_variable") == 0 ||
              strcmp(op->name, "apply_optimizer_rows") == 0;
  if (rows) up->ids = in[0];
  up->value = *in[rows ? 1 : 0];
  if (apply) {
    up->kind = rows ? TM_UP_APPLY_ROWS : TM_UP_APPLY;
    if (unique) up->nunique = tm_view_get_i64(in[4], 0);
    if (rows && !unique) update_fan(a, up);
    return update_rule(a, in[rows ? 2 : 1], in[rows ? 3 : 2], up, err);
  }
  static const tm_update_kind kinds[2][3] = {
      {TM_UP_ASSIGN, TM_UP_ADD, TM_UP_SUB},
      {TM_UP_SCATTER_SET, TM_UP_SCATTER_ADD, TM_UP_SCATTER_SUB}};
  int mode = state_mode(a);
  up->once = mode > MODE_SUB;
  up->kind = kinds[rows][up->once ? mode - MODE_SUB : mode];
  return TM_OK;
}

/* --- iterators, worker --- */

static tm_status infer_next(tm_infer *c) {
  if (c->in[0].dtype != TM_DTYPE_NONE)
    return tm_fail(c->err, TM_EINVAL, "the argument is a tensor, not an iterator");
  return tm_attr_types(&c->attrs->a[0], c->out, TM_MAX_OUTPUTS, &c->nout, c->err);
}

static tm_status infer_worker(tm_infer *c) {
  c->nout = 1;
  c->out[0].dtype = TM_I64;
  c->out[0].shape = tm_shape_scalar();
  return TM_OK;
}

static tm_status kernel_worker(tm_kctx *c) {
  if (c->env->worker < 0)
    return tm_fail(c->err, TM_EPRECOND,
                   "there is no worker here: current_worker_index is for scheduled "
                   "functions and dataset functions");
  *(int64_t *)c->out[0].data = c->env->worker;
  return TM_OK;
}

/* --- the table --- */

#define VAR    "uid:int, dtype:dtype, shape:shape"
#define RULE   VAR ", rule:str, optimizer:int, hyper:floats=[], shard:int=-1"
#define READ   TM_OP_STATE | TM_OP_HIDDEN
#define UPDATE TM_OP_STATE | TM_OP_STATEFUL | TM_OP_HIDDEN

enum {
  OP_READ,
  OP_GATHER,
  OP_GATHER_UNIQUE,
  OP_SLOT,
  OP_ASSIGN,
  OP_SCATTER,
  OP_APPLY,
  OP_APPLY_ROWS,
  OP_APPLY_UNIQUE,
  OP_NEXT,
  OP_WORKER
};

static const tm_op ops[] = {
    [OP_READ] = {.name = "read_variable",
                 .sig = "; " VAR ", shard:int=-1",
                 .help = "The value of a variable.",
                 .flags = READ,
                 .infer = infer_read},
    [OP_GATHER] = {.name = "gather_variable",
                   .sig = "ids; " VAR ", shard:int=-1, combine:str=none",
                   .help = "Rows of a variable: ids.shape + shape[2:].",
                   .flags = READ,
                   .infer = infer_gather},
    [OP_GATHER_UNIQUE] = {.name = "gather_unique_variable",
                          .sig = "ids, count; " VAR ", shard:int=-1",
                          .help = "Rows of a variable for the first count ids, which "
                                  "are distinct; the other rows are left as they are.",
                          .flags = READ,
                          .infer = infer_gather_unique},
    [OP_SLOT] = {.name = "read_slot",
                 .sig = "; " VAR ", optimizer:int, slot:str",
                 .help = "A slot that an optimizer keeps beside a variable.",
                 .flags = READ,
                 .infer = infer_read},
    [OP_ASSIGN] = {.name = "assign_variable",
                   .sig = "value; " VAR ", mode:str=set, shard:int=-1",
                   .help = "Set a variable, or add to it, or subtract from it.",
                   .flags = UPDATE,
                   .infer = infer_assign},
    [OP_SCATTER] = {.name = "scatter_variable",
                    .sig = "ids, rows; " VAR ", mode:str=set, shard:int=-1",
                    .help = "Set rows of a variable, or add or subtract them.",
                    .flags = UPDATE,
                    .infer = infer_scatter},
    [OP_APPLY] = {.name = "apply_optimizer",
                  .sig = "grad, lr, t; " RULE,
                  .help = "One step of an optimizer; hyper is what its rule takes "
                          "after the learning rate.",
                  .flags = UPDATE,
                  .infer = infer_apply},
    [OP_APPLY_ROWS] = {.name = "apply_optimizer_rows",
                       .sig = "ids, rows, lr, t; " RULE ", combine:str=none",
                       .help = "One step of an optimizer for some rows (ids may "
                               "repeat: their gradients are summed).",
                       .flags = UPDATE,
                       .infer = infer_apply_rows},
    [OP_APPLY_UNIQUE] = {.name = "apply_optimizer_unique",
                         .sig = "ids, rows, lr, t, count; " RULE,
                         .help = "One step of an optimizer for the first count rows, "
                                 "whose ids are distinct.",
                         .flags = UPDATE,
                         .infer = infer_apply_unique},
    [OP_NEXT] = {.name = "iterator_next",
                 .sig = "it; elements:ints",
                 .help = "The next element of an iterator.",
                 .flags = UPDATE,
                 .infer = infer_next},
    [OP_WORKER] = {.name = "worker_index",
                   .sig = "",
                   .help = "Index of the worker that runs this, from 0.",
                   .flags = TM_OP_RANDOM | TM_OP_HIDDEN,
                   .infer = infer_worker,
                   .kernel = kernel_worker},
};

const tm_op_group tm_ops_state = {ops, (int32_t)TM_COUNT(ops)};

tm_node_kind tm_op_kind_of_state(const tm_op *op) {
  if (op == &ops[OP_NEXT]) return TM_NODE_NEXT;
  return op <= &ops[OP_SLOT] ? TM_NODE_READ : TM_NODE_UPDATE;
}

bool tm_node_has_uid(const tm_node *n) {
  tm_node_kind k = tm_node_kind_of(n);
  return k == TM_NODE_READ || k == TM_NODE_UPDATE;
}

int64_t *tm_op_uid(const tm_op *op, tm_attrs *attrs) {
  tm_node_kind k = tm_op_kind(op);
  if (k != TM_NODE_READ && k != TM_NODE_UPDATE) return NULL;
  if (attrs->n <= A_UID || attrs->a[A_UID].kind != TM_ATTR_INT) return NULL;
  return &attrs->a[A_UID].u.i;
}

uint64_t tm_node_uid(const tm_node *n) { return (uint64_t)n->attrs.a[A_UID].u.i; }

bool tm_node_once(const tm_node *n) {
  const tm_op *op = n->op;
  return (op == &ops[OP_ASSIGN] || op == &ops[OP_SCATTER]) &&
         state_mode(&n->attrs) > MODE_SUB;
}

int32_t tm_node_shard(const tm_node *n) {
  const tm_op *op = n->op;
  int at = op <= &ops[OP_GATHER_UNIQUE] ? A_READ_SHARD
           : op == &ops[OP_SLOT]        ? -1
           : op <= &ops[OP_SCATTER]     ? A_MODE_SHARD
                                        : A_APPLY_SHARD;
  return at < 0 ? -1 : (int32_t)n->attrs.a[at].u.i;
}
