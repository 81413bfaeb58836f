#include "graph/op.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "base/check.h"
#include "base/map.h"
#include "graph/sig.h"

/*
 * Design.  A fixed table of entries in order of registration and two open-addressing
 * indexes into it, by name and by the op's address.  Nothing is allocated, so the
 * table outlives every user and never shows up as live memory.
 *
 * Invariants:
 *   (1) An entry never moves or changes once op_count covers it.
 *   (2) An index slot holds entry + 1, 0 when free; at most half of the slots are used.
 *
 * Registration is guarded by op_mutex; readers take no lock, because ops are
 * registered before use (op.h) and tm_ops_init is a barrier for the built-in ones.
 */
enum { MAX_OPS = 1024, SLOTS = 2048 };

struct op_entry {
  const tm_op *op;
  tm_sig sig;
  tm_sig_pool pool;
};

static struct op_entry op_table[MAX_OPS];
static int32_t op_count; /* guarded by op_mutex while ops are added */
static uint16_t op_by_name[SLOTS];
static uint16_t op_by_address[SLOTS];
static pthread_mutex_t op_mutex = PTHREAD_MUTEX_INITIALIZER;

static uint32_t op_hash_name(const char *name) {
  uint32_t h = 2166136261U;
  for (; *name; name++) h = (h ^ (uint8_t)*name) * 16777619U;
  return h;
}

static uint32_t op_hash_address(const tm_op *op) {
  return (uint32_t)tm_mix64((uint64_t)(uintptr_t)op);
}

const tm_op *tm_op_find(const char *name) {
  for (uint32_t i = op_hash_name(name);; i++) {
    uint16_t e = op_by_name[i % SLOTS];
    if (e == 0) return NULL;
    if (strcmp(op_table[e - 1].op->name, name) == 0) return op_table[e - 1].op;
  }
}

static struct op_entry *op_entry_of(const tm_op *op) {
  for (uint32_t i = op_hash_address(op);; i++) {
    uint16_t e = op_by_address[i % SLOTS];
    TM_DCHECK(e != 0); /* the op was added */
    if (op_table[e - 1].op == op) return &op_table[e - 1];
  }
}

static void op_index(uint16_t *index, uint32_t hash, int32_t entry) {
  while (index[hash % SLOTS]) hash++;
  index[hash % SLOTS] = (uint16_t)(entry + 1);
}

static tm_status op_add_locked(const tm_op *op, tm_err *err) {
  if (tm_op_find(op->name))
    return tm_fail(err, TM_EEXISTS, "an op named \"%s\" exists already", op->name);
  if (op_count == MAX_OPS)
    return tm_fail(err, TM_EEXHAUSTED, "there is room for %d ops only", MAX_OPS);
  struct op_entry *e = &op_table[op_count];
  tm_status s = tm_sig_parse(op->sig, &e->sig, &e->pool, err);
  if (s) return tm_err_prefix(err, s, "op \"%s\"", op->name);
  e->op = op;
  op_index(op_by_address, op_hash_address(op), op_count);
  op_index(op_by_name, op_hash_name(op->name), op_count);
  op_count++;
  return TM_OK;
}

tm_status tm_op_add(const tm_op *op, tm_err *err) {
  if (!op->name || !op->sig || !op->infer)
    return tm_fail(err, TM_EINVAL, "an op needs a name, a signature and infer");
  pthread_mutex_lock(&op_mutex);
  tm_status s = op_add_locked(op, err);
  pthread_mutex_unlock(&op_mutex);
  return s;
}

/* --- the built-in ops --- */

static pthread_once_t ops_once = PTHREAD_ONCE_INIT;
static tm_err ops_err; /* written once, by ops_register */

static void ops_register(void) {
  static const tm_op_group *const groups[] = {
#define X(g) &tm_ops_##g,
      TM_OP_GROUPS(X)
#undef X
  };
  for (size_t g = 0; g < TM_COUNT(groups); g++)
    for (int32_t i = 0; i < groups[g]->n; i++)
      if (tm_op_add(&groups[g]->ops[i], &ops_err)) return;
}

tm_status tm_ops_init(tm_err *err) {
  pthread_once(&ops_once, ops_register);
  if (ops_err.code) return tm_fail(err, ops_err.code, "%s", ops_err.msg);
  return TM_OK;
}

int32_t tm_op_count(void) { return op_count; }

const tm_op *tm_op_at(int32_t i) {
  return i >= 0 && i < op_count ? op_table[i].op : NULL;
}

const tm_sig *tm_op_sig(const tm_op *op) { return &op_entry_of(op)->sig; }

int32_t tm_op_attr_index(const tm_op *op, const char *name) {
  const tm_sig *sig = tm_op_sig(op);
  for (int32_t i = 0; i < sig->nattr; i++)
    if (strcmp(sig->attr[i].name, name) == 0) return i;
  return -1;
}

/* --- completion --- */

/* Make a's kind the declared one where no meaning is lost: 2 is a float too, one axis
 * is a list of axes. */
static tm_status op_convert(const tm_param *p, tm_attr *a) {
  if (p->kind == TM_ATTR_FLOAT && a->kind == TM_ATTR_INT) {
    tm_attr_set_float(a, (double)a->u.i);
    return TM_OK;
  }
  if (p->kind == TM_ATTR_AXIS && a->kind == TM_ATTR_INT) {
    a->kind = TM_ATTR_AXIS;
    return TM_OK;
  }
  bool one = a->kind == TM_ATTR_INT || a->kind == TM_ATTR_AXIS;
  bool ints =
      a->kind == TM_ATTR_INTS || a->kind == TM_ATTR_AXES || a->kind == TM_ATTR_SHAPE;
  switch (p->kind) {
    case TM_ATTR_AXES:
    case TM_ATTR_INTS:
    case TM_ATTR_SHAPE:
      if (one) {
        int64_t v = a->u.i;
        return tm_attr_set_ints(a, p->kind, &v, 1);
      }
      if (!ints) return TM_EINVAL;
      a->kind = p->kind;
      return TM_OK;
    default:
      return TM_EINVAL;
  }
}

static tm_status op_complete_one(const tm_param *p, tm_attr *a, tm_err *err) {
  if (a->kind == TM_ATTR_NONE) {
    if (p->optional) return TM_OK;
    if (p->dflt.kind == TM_ATTR_NONE)
      return tm_fail(err, TM_EINVAL, "argument \"%s\" (%s) is missing", p->name,
                     tm_attr_kind_name(p->kind));
    tm_attrs from = {1, {p->dflt}}, to;
    if (tm_attrs_copy(&to, &from)) return tm_nomem(err, p->name);
    *a = to.a[0];
    return TM_OK;
  }
  if (a->kind != p->kind) {
    tm_attr_kind given = a->kind;
    tm_status s = op_convert(p, a);
    if (s == TM_EINVAL)
      return tm_fail(err, s, "argument \"%s\" must be of kind %s, not %s", p->name,
                     tm_attr_kind_name(p->kind), tm_attr_kind_name(given));
    if (s) return tm_nomem(err, p->name);
  }
  if (p->kind == TM_ATTR_DTYPE && !tm_dtype_valid(a->u.i))
    return tm_fail(err, TM_EINVAL, "argument \"%s\" is no dtype", p->name);
  if (p->kind == TM_ATTR_SHAPE && a->n > TM_MAX_RANK)
    return tm_fail(err, TM_EINVAL, "argument \"%s\" has %" PRId32 " sizes, at most %d",
                   p->name, a->n, TM_MAX_RANK);
  return TM_OK;
}

tm_status tm_op_complete_attrs(const tm_op *op, tm_attrs *attrs, tm_err *err) {
  const tm_sig *sig = tm_op_sig(op);
  if (attrs->n > sig->nattr)
    return tm_fail(err, TM_EINVAL, "%" PRId32 " attributes given, %" PRId32 " declared",
                   attrs->n, sig->nattr);
  for (int32_t i = 0; i < sig->nattr; i++) {
    if (i >= attrs->n) {
      memset(&attrs->a[i], 0, sizeof attrs->a[i]);
      attrs->n = i + 1;
    }
    TM_TRY(op_complete_one(&sig->attr[i], &attrs->a[i], err));
  }
  return TM_OK;
}

/* --- inference --- */

static tm_status op_check_inputs(const tm_op *op, int32_t nin, tm_err *err) {
  const tm_sig *sig = tm_op_sig(op);
  if (nin >= sig->min_in && nin <= sig->max_in) return TM_OK;
  if (sig->min_in == sig->max_in)
    return tm_fail(err, TM_EINVAL, "takes %" PRId32 " tensors, got %" PRId32,
                   sig->min_in, nin);
  return tm_fail(err, TM_EINVAL,
                 "takes %" PRId32 " to %" PRId32 " tensors, got %" PRId32, sig->min_in,
                 sig->max_in, nin);
}

static tm_status op_infer(const tm_op *op, tm_infer *c, tm_err *err) {
  TM_TRY(op_check_inputs(op, c->nin, err));
  TM_TRY(op->infer(c));
  for (int32_t i = 0; i < c->nout; i++) {
    if (c->out[i].dtype == TM_DTYPE_NONE) continue;
    TM_TRY(
        tm_shape_check(&c->out[i].shape, (int64_t)tm_dtype_size(c->out[i].dtype), err));
  }
  return TM_OK;
}

tm_status tm_op_infer(const tm_op *op, const tm_type *in, int32_t nin,
                      const tm_attrs *attrs, tm_type *out, int32_t *nout, tm_err *err) {
  tm_infer c;
  c.op = op; /* out[] is large and filled by infer: not cleared */
  c.nout = 0;
  c.nin = nin;
  c.in = in;
  c.attrs = attrs;
  c.err = err;
  tm_status s = op_infer(op, &c, err);
  if (s) {
    if (err && !err->op[0]) {
      strncpy(err->op, op->name, sizeof err->op - 1);
      err->op[sizeof err->op - 1] = '\0';
    }
    return s;
  }
  memcpy(out, c.out, (size_t)c.nout * sizeof *out);
  *nout = c.nout;
  return TM_OK;
}
