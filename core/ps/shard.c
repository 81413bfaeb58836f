#include "ps/shard.h"

#include <inttypes.h>
#include <sched.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "kernel/accum.h"
#include "ps/keep.h"
#include "ps/snapshot.h"

/*
 * Design.  A dense shard has at most two versions here: `cur`, and `old`, which readers
 * may still hold.  A reader shares `cur` only while nobody holds `old`; otherwise it
 * gets a copy of its own.  So when a writer finds `cur` shared, `old` is free, and it
 * moves on: no writer ever waits for a reader, not even for one that never lets go (a
 * tensor in a user's variable, a stopped process).
 *
 * A snapshot may hold `cur` besides (`snap` says so).  The next writer leaves that
 * version to it: that is one version more, while the snapshot needs it.  Slots that a
 * snapshot holds are left to it in the same way.  Rows of a table are copied aside
 * before they change (ps/keep.h).
 *
 * Invariants:
 *   (1) Not both `cur` and `old` are held by readers.
 *   (2) A table's `cur` is held by nobody else.
 *   (3) Slots are only ever added, at the head; their tensors are shared with snapshots
 *       only, those of a table with nobody.
 *   (4) Order of locks: mu of shards by address, then one stripe.  A thread that holds
 * a stripe takes nothing else.
 *
 * A tensor counts as held when its storage is: a reader may keep a reshaped tensor.
 */
enum { SHARD_MAX_SLOTS = 256 };

static bool shard_held(const tm_tensor *t) {
  return atomic_load_explicit(&t->refs, memory_order_acquire) > 1 ||
         atomic_load_explicit(&t->storage->refs, memory_order_acquire) > 1;
}

static tm_status shard_check_spec(const tm_shard_spec *sp, tm_err *err) {
  size_t elem = tm_dtype_size(sp->dtype);
  if (elem == 0 || sp->dtype == TM_STRING)
    return tm_fail(err, TM_EINVAL, "a variable of dtype %s cannot live on a ps",
                   tm_dtype_name(sp->dtype));
  TM_TRY(tm_shape_check(&sp->shape, (int64_t)elem, err));
  TM_TRY(tm_shape_check(&sp->full_shape, (int64_t)elem, err));
  if (!tm_shape_known(&sp->shape) || !tm_shape_known(&sp->full_shape))
    return tm_fail(err, TM_EINVAL, "a variable's shape must be fully known");
  bool fits = sp->shape.rank == sp->full_shape.rank && sp->row_offset >= 0;
  for (int32_t i = 1; fits && i < sp->shape.rank; i++)
    fits = sp->shape.dim[i] == sp->full_shape.dim[i];
  if (fits && sp->shape.rank)
    fits = sp->row_offset <= sp->full_shape.dim[0] - sp->shape.dim[0];
  if (fits) return TM_OK;
  char a[96], b[96];
  return tm_fail(err, TM_EINVAL, "shard %s from row %" PRId64 " is not a part of %s",
                 tm_shape_text(&sp->shape, a, sizeof a), sp->row_offset,
                 tm_shape_text(&sp->full_shape, b, sizeof b));
}

tm_status tm_shard_new(const tm_shard_spec *sp, tm_shard **out, tm_err *err) {
  *out = NULL;
  TM_TRY(shard_check_spec(sp, err));
  tm_shard *sh = tm_calloc(1, sizeof *sh);
  if (!sh) return tm_nomem(err, "a shard");
  atomic_init(&sh->refs, 1);
  pthread_mutex_init(&sh->mu, NULL);
  sh->uid = sp->uid;
  sh->index = sp->shard;
  sh->dtype = sp->dtype;
  sh->user = sp->user;
  sh->shape = sp->shape;
  sh->full_shape = sp->full_shape;
  sh->rows = sp->shape.rank ? sp->shape.dim[0] : 1;
  sh->width = 1;
  for (int32_t i = 1; i < sp->shape.rank; i++) sh->width *= sp->shape.dim[i];
  sh->row_bytes = (size_t)sh->width * tm_dtype_size(sp->dtype);
  tm_status s = tm_tensor_new(sp->dtype, &sp->shape, &sh->cur, err);
  if (s == TM_OK)
    s = tm_init_fill(&sp->init, sp->row_offset * sh->width, &sh->cur->v, err);
  if (s) {
    tm_shard_unref(sh);
    return s;
  }
  *out = sh;
  return TM_OK;
}

tm_shard *tm_shard_ref(tm_shard *sh) {
  atomic_fetch_add_explicit(&sh->refs, 1, memory_order_relaxed);
  return sh;
}

void tm_shard_unref(tm_shard *sh) {
  if (!sh || atomic_fetch_sub_explicit(&sh->refs, 1, memory_order_acq_rel) != 1) return;
  for (tm_slot *k = atomic_load(&sh->slots), *next; k; k = next) {
    next = k->next;
    tm_tensor_unref(k->t);
    tm_free(k, sizeof *k);
  }
  tm_tensor_unref(sh->cur);
  tm_tensor_unref(sh->old);
  tm_free_aligned(sh->stripe, TM_STRIPES * sizeof *sh->stripe);
  atomic_ullong *touched = atomic_load(&sh->touched);
  if (touched) tm_free(touched, tm_shard_words(sh) * sizeof *touched);
  pthread_mutex_destroy(&sh->mu);
  tm_free(sh, sizeof *sh);
}

void tm_shard_lock(tm_shard *sh) { pthread_mutex_lock(&sh->mu); }
void tm_shard_unlock(tm_shard *sh) { pthread_mutex_unlock(&sh->mu); }

bool tm_shard_is_table(const tm_shard *sh) {
  return atomic_load_explicit(&sh->table, memory_order_acquire);
}

/* --- versions --- */

/* A snapshot holds the slot: it keeps this array, the writer gets a new one. */
static tm_status shard_writable_slot(tm_shard *sh, tm_slot *k, tm_err *err) {
  tm_tensor *next;
  if (!shard_held(k->t)) return TM_OK;
  TM_TRY(tm_tensor_new(sh->dtype, &sh->shape, &next, err));
  size_t bytes = tm_view_bytes(&k->t->v);
  if (bytes) memcpy(next->v.data, k->t->v.data, bytes);
  tm_tensor_unref(k->t);
  k->t = next;
  return TM_OK;
}

static tm_status shard_writable_cur(tm_shard *sh, tm_err *err) {
  if (!shard_held(sh->cur)) return TM_OK;
  bool spare = sh->old && !shard_held(sh->old);
  /* Readers that hold `old` keep the writer from it; then `cur` is a snapshot's, or was
   * until a moment ago. */
  bool leave = atomic_load(&sh->snap) == sh->cur || (sh->old && !spare);
  tm_tensor *next = spare ? sh->old : NULL;
  if (!next) TM_TRY(tm_tensor_new(sh->dtype, &sh->shape, &next, err));
  size_t bytes = tm_view_bytes(&sh->cur->v);
  if (bytes) memcpy(next->v.data, sh->cur->v.data, bytes);
  if (!leave) {
    sh->old = sh->cur;
  } else {
    tm_tensor_unref(sh->cur);
    if (spare) sh->old = NULL;
  }
  sh->cur = next;
  return TM_OK;
}

tm_status tm_shard_writable(tm_shard *sh, tm_err *err) {
  tm_slot *k = atomic_load_explicit(&sh->slots, memory_order_acquire);
  for (; k; k = k->next) TM_TRY(shard_writable_slot(sh, k, err));
  return shard_writable_cur(sh, err);
}

/* Blocks of about 4 KB share a stripe, so that a pass over a table locks seldom. */
static int shard_shift(size_t row_bytes) {
  int shift = 0;
  while (shift < 12 && (row_bytes << shift) < 4096) shift++;
  return shift;
}

static tm_status shard_to_table(tm_shard *sh, tm_err *err) {
  tm_stripe *st = tm_malloc_aligned(TM_STRIPES * sizeof *st);
  if (!st) return tm_nomem(err, "the locks of a row table");
  for (int i = 0; i < TM_STRIPES; i++) atomic_init(&st[i].locked, 0);
  tm_status s = tm_shard_writable(sh, err);
  if (s) {
    tm_free_aligned(st, TM_STRIPES * sizeof *st);
    return s;
  }
  tm_tensor_unref(sh->old); /* a table has one version */
  sh->old = NULL;
  sh->stripe = st;
  sh->shift = shard_shift(sh->row_bytes);
  atomic_store_explicit(&sh->table, true, memory_order_release);
  return TM_OK;
}

tm_status tm_shard_make_table(tm_shard *sh, tm_err *err) {
  if (tm_shard_is_table(sh)) return TM_OK;
  tm_shard_lock(sh);
  tm_status s = tm_shard_is_table(sh) ? TM_OK : shard_to_table(sh, err);
  tm_shard_unlock(sh);
  return s;
}

/* --- slots --- */

tm_slot *tm_shard_slot(tm_shard *sh, uint64_t optimizer, const char *name) {
  tm_slot *k = atomic_load_explicit(&sh->slots, memory_order_acquire);
  while (k && (k->optimizer != optimizer || strcmp(k->name, name) != 0)) k = k->next;
  return k;
}

static tm_status shard_add_slot(tm_shard *sh, uint64_t optimizer, const char *name,
                                double start, tm_err *err) {
  if (tm_shard_count_slots(sh) >= SHARD_MAX_SLOTS)
    return tm_fail(err, TM_EEXHAUSTED,
                   "variable %" PRIx64 " has %d slots: use one optimizer for its life",
                   sh->uid, (int)SHARD_MAX_SLOTS);
  tm_slot *k = tm_calloc(1, sizeof *k);
  if (!k) return tm_nomem(err, "a slot");
  tm_init in = {.kind = "constant", .a = start};
  tm_status s = tm_tensor_new(sh->dtype, &sh->shape, &k->t, err);
  if (s == TM_OK) s = tm_init_fill(&in, 0, &k->t->v, err);
  if (s) {
    tm_tensor_unref(k->t);
    tm_free(k, sizeof *k);
    return s;
  }
  k->optimizer = optimizer;
  strncpy(k->name, name, sizeof k->name - 1);
  k->next = atomic_load_explicit(&sh->slots, memory_order_relaxed);
  atomic_store_explicit(&sh->slots, k, memory_order_release);
  return TM_OK;
}

tm_status tm_shard_make_slots(tm_shard *sh, uint64_t optimizer, const tm_rule *rule,
                              const double *hyper, tm_err *err) {
  const char *name[TM_RULE_MAX_SLOTS];
  double start[TM_RULE_MAX_SLOTS];
  int32_t n = rule->slots(hyper, name, start), have = 0;
  while (have < n && tm_shard_slot(sh, optimizer, name[have])) have++;
  if (have == n) return TM_OK;
  tm_status s = TM_OK;
  tm_shard_lock(sh);
  for (int32_t i = 0; i < n && s == TM_OK; i++)
    if (!tm_shard_slot(sh, optimizer, name[i]))
      s = shard_add_slot(sh, optimizer, name[i], start[i], err);
  tm_shard_unlock(sh);
  return s;
}

/* --- stripes --- */

void tm_stripe_lock(tm_stripe *st) {
  int spins = 0;
  while (atomic_exchange_explicit(&st->locked, 1, memory_order_acquire)) {
    while (atomic_load_explicit(&st->locked, memory_order_relaxed))
      if (++spins > 100) sched_yield(); /* its holder may wait for this very core */
  }
}

/* --- updates --- */

/* One change of n elements from element `at` on; y is the update's piece for them. */
typedef struct shard_op {
  tm_ps_up_kind kind;
  const tm_rule *rule;
  const tm_ps_update *up;
  void *x;
  void *slot[TM_RULE_MAX_SLOTS];
  int32_t nslot;
  tm_keep *keep; /* NULL: no snapshot is being read */
  int64_t *patience_ns;
} shard_op;

static void shard_op_init(tm_shard *sh, const tm_ps_update *up, shard_op *op) {
  *op = (shard_op){.kind = up->kind,
                   .up = up,
                   .x = sh->cur->v.data,
                   .keep = atomic_load_explicit(&sh->keep, memory_order_acquire)};
  if (up->kind != TM_PS_APPLY && up->kind != TM_PS_APPLY_ROWS) return;
  const char *name[TM_RULE_MAX_SLOTS];
  double start[TM_RULE_MAX_SLOTS];
  op->rule = tm_rule_find(up->rule);
  op->nslot = op->rule->slots(up->hyper, name, start);
  for (int32_t i = 0; i < op->nslot; i++)
    op->slot[i] = tm_shard_slot(sh, up->optimizer, name[i])->t->v.data;
}

static void shard_accum(tm_dtype t, bool sub, void *x, const void *y, size_t n) {
  switch (t) {
#define CASE(E, S)                 \
  case TM_##E:                     \
    if (sub)                       \
      tm_k_accum_sub_##S(x, y, n); \
    else                           \
      tm_k_accum_add_##S(x, y, n); \
    break;
    CASE(F32, f32)
    CASE(F64, f64)
    CASE(I32, i32)
    CASE(I64, i64)
    CASE(U8, u8)
#undef CASE
    default:
      break;
  }
}

static void shard_rule(const shard_op *op, tm_dtype t, size_t at, const void *g,
                       int64_t n) {
  if (t == TM_F32) {
    float *s[TM_RULE_MAX_SLOTS];
    for (int32_t i = 0; i < op->nslot; i++) s[i] = (float *)op->slot[i] + at;
    op->rule->apply_f32((float *)op->x + at, g, s, n, op->up->hyper, op->up->t);
  } else {
    double *s[TM_RULE_MAX_SLOTS];
    for (int32_t i = 0; i < op->nslot; i++) s[i] = (double *)op->slot[i] + at;
    op->rule->apply_f64((double *)op->x + at, g, s, n, op->up->hyper, op->up->t);
  }
}

static void shard_run(const shard_op *op, tm_dtype t, size_t at, const void *y,
                      int64_t n) {
  size_t size = tm_dtype_size(t);
  void *x = (char *)op->x + at * size;
  if (n == 0) return;
  switch (op->kind) {
    case TM_PS_ASSIGN:
    case TM_PS_SCATTER_SET:
      memcpy(x, y, (size_t)n * size);
      break;
    case TM_PS_ADD:
    case TM_PS_SCATTER_ADD:
      shard_accum(t, false, x, y, (size_t)n);
      break;
    case TM_PS_SUB:
    case TM_PS_SCATTER_SUB:
      shard_accum(t, true, x, y, (size_t)n);
      break;
    case TM_PS_APPLY:
    case TM_PS_APPLY_ROWS:
      shard_rule(op, t, at, y, n);
      break;
  }
}

/* Rows are scattered in memory: ask for one some steps before its turn. */
enum { SHARD_AHEAD = 6 };

static void shard_prefetch(const tm_shard *sh, const void *base, int64_t row) {
  const char *p = (const char *)base + (size_t)row * sh->row_bytes;
  for (size_t i = 0; i < sh->row_bytes && i < 256; i += 64) __builtin_prefetch(p + i);
}

/* Lock the stripe of rows that are about to change; what a snapshot needs of them is
 * kept. */
static tm_stripe *shard_lock_rows(tm_shard *sh, const shard_op *op, int64_t row,
                                  int64_t n) {
  tm_stripe *st = tm_shard_stripe(sh, row);
  tm_stripe_lock(st);
  while (op->keep && !tm_keep_rows(op->keep, row, row + n)) {
    tm_stripe_unlock(st); /* the reader may need this very stripe */
    tm_keep_wait(op->keep, op->patience_ns);
    tm_stripe_lock(st);
  }
  return st;
}

/* --- what changed --- */

tm_status tm_shard_make_touched(tm_shard *sh, tm_err *err) {
  if (atomic_load(&sh->touched) || sh->rows == 0) return TM_OK;
  atomic_ullong *touched = tm_calloc(tm_shard_words(sh), sizeof *touched);
  if (!touched) return tm_nomem(err, "the rows that change");
  atomic_store(&sh->touched, touched);
  return TM_OK;
}

void tm_shard_mark(tm_shard *sh, uint64_t base) {
  atomic_ullong *touched = atomic_load(&sh->touched);
  if (!touched) return;
  for (size_t i = 0; i < tm_shard_words(sh); i++)
    atomic_store_explicit(&touched[i], 0, memory_order_relaxed);
  atomic_store(&sh->base, base);
}

/* Most rows that change were changed before: then it is one load. */
static inline void shard_touch(atomic_ullong *touched, int64_t row) {
  unsigned long long bit = 1ULL << (row & 63);
  atomic_ullong *word = &touched[row >> 6];
  if (!(atomic_load_explicit(word, memory_order_relaxed) & bit))
    atomic_fetch_or_explicit(word, bit, memory_order_relaxed);
}

static void shard_apply_rows(tm_shard *sh, const shard_op *op) {
  const int64_t *ids = op->up->ids.data;
  int64_t n = op->up->ids.shape.dim[0];
  const char *y = op->up->value.data;
  atomic_ullong *touched = atomic_load_explicit(&sh->touched, memory_order_acquire);
  for (int64_t i = 0; i < n; i++, y += sh->row_bytes) {
    if (i + SHARD_AHEAD < n) {
      shard_prefetch(sh, op->x, ids[i + SHARD_AHEAD]);
      for (int32_t k = 0; k < op->nslot; k++)
        shard_prefetch(sh, op->slot[k], ids[i + SHARD_AHEAD]);
    }
    tm_stripe *st = shard_lock_rows(sh, op, ids[i], 1);
    shard_run(op, sh->dtype, (size_t)ids[i] * (size_t)sh->width, y, sh->width);
    if (touched) shard_touch(touched, ids[i]);
    tm_stripe_unlock(st);
  }
}

/* A dense change of a table, a block of rows at a time. */
static void shard_apply_blocks(tm_shard *sh, const shard_op *op) {
  int64_t step = (int64_t)1 << sh->shift;
  const char *y = op->up->value.data;
  atomic_store(&sh->base, 0);
  for (int64_t r = 0; r < sh->rows; r += step) {
    int64_t n = sh->rows - r < step ? sh->rows - r : step;
    tm_stripe *st = shard_lock_rows(sh, op, r, n);
    shard_run(op, sh->dtype, (size_t)r * (size_t)sh->width,
              y + (size_t)r * sh->row_bytes, n * sh->width);
    tm_stripe_unlock(st);
  }
}

static void shard_apply_dense(tm_shard *sh, const shard_op *op) {
  atomic_store(&sh->base, 0);
  shard_run(op, sh->dtype, 0, op->up->value.data, sh->rows * sh->width);
}

void tm_shard_apply(tm_shard *sh, const tm_ps_update *up, int64_t *patience_ns) {
  shard_op op;
  shard_op_init(sh, up, &op);
  op.patience_ns = patience_ns;
  if (up->ids.data)
    shard_apply_rows(sh, &op);
  else if (tm_shard_is_table(sh))
    shard_apply_blocks(sh, &op);
  else
    shard_apply_dense(sh, &op);
}

/* --- rows of a checkpoint --- */

static tm_status put_slot(tm_shard *sh, const tm_ps_place *p, tm_slot **out,
                          tm_err *err) {
  const tm_rule *rule = tm_rule_find("slot");
  const double hyper[TM_RULE_MAX_HYPER] = {0.0, (double)p->slot};
  const char *name[TM_RULE_MAX_SLOTS];
  double start[TM_RULE_MAX_SLOTS];
  rule->slots(hyper, name, start);
  TM_TRY(tm_shard_make_slots(sh, p->optimizer, rule, hyper, err));
  *out = tm_shard_slot(sh, p->optimizer, name[0]);
  return TM_OK;
}

static void put_blocks(tm_shard *sh, char *to, int64_t first, const char *y,
                       int64_t n) {
  int64_t step = (int64_t)1 << sh->shift, patience_ns = TM_SNAPSHOT_PATIENCE_NS;
  shard_op op = {.keep = atomic_load_explicit(&sh->keep, memory_order_acquire),
                 .patience_ns = &patience_ns};
  atomic_store(&sh->base, 0);
  for (int64_t r = first, end = first + n, next; r < end; r = next) {
    next = (r | (step - 1)) + 1;
    if (next > end) next = end;
    tm_stripe *st = shard_lock_rows(sh, &op, r, next - r);
    memcpy(to + (size_t)r * sh->row_bytes, y + (size_t)(r - first) * sh->row_bytes,
           (size_t)(next - r) * sh->row_bytes);
    tm_stripe_unlock(st);
  }
}

static tm_status put_dense(tm_shard *sh, tm_slot *slot, int64_t first, const char *y,
                           int64_t n, tm_err *err) {
  TM_TRY(tm_shard_writable(sh, err));
  atomic_store(&sh->base, 0);
  memcpy((char *)(slot ? slot->t : sh->cur)->v.data + (size_t)first * sh->row_bytes, y,
         (size_t)n * sh->row_bytes);
  return TM_OK;
}

tm_status tm_shard_put(tm_shard *sh, const tm_ps_place *p, const tm_view *v,
                       tm_err *err) {
  tm_slot *slot = NULL;
  int64_t n = v->shape.rank ? v->shape.dim[0] : 1;
  tm_status s = TM_OK;
  if (p->slot >= 0) TM_TRY(put_slot(sh, p, &slot, err));
  if (n == 0 || sh->row_bytes == 0) return TM_OK;
  tm_shard_lock(sh); /* it does not become a table meanwhile */
  bool table = tm_shard_is_table(sh);
  if (!table) s = put_dense(sh, slot, p->first, v->data, n, err);
  tm_shard_unlock(sh);
  if (table) put_blocks(sh, (slot ? slot->t : sh->cur)->v.data, p->first, v->data, n);
  return s;
}

/* --- reads --- */

/* Copy an array of the shard's shape, block by block where it is a table. */
static void shard_copy(tm_shard *sh, void *to, const void *from) {
  if (!tm_shard_is_table(sh)) {
    size_t bytes = (size_t)sh->rows * sh->row_bytes;
    if (bytes) memcpy(to, from, bytes);
    return;
  }
  int64_t step = (int64_t)1 << sh->shift;
  for (int64_t r = 0; r < sh->rows; r += step) {
    int64_t n = sh->rows - r < step ? sh->rows - r : step;
    size_t at = (size_t)r * sh->row_bytes;
    tm_stripe *st = tm_shard_stripe(sh, r);
    tm_stripe_lock(st);
    if (sh->row_bytes)
      memcpy((char *)to + at, (const char *)from + at, (size_t)n * sh->row_bytes);
    tm_stripe_unlock(st);
  }
}

static tm_status shard_read_copy(tm_shard *sh, tm_ps_read *rd, const tm_tensor *from,
                                 tm_err *err) {
  void *to = rd->dst.data;
  if (!to) {
    TM_TRY(tm_tensor_new(sh->dtype, &sh->shape, &rd->out, err));
    to = rd->out->v.data;
  }
  shard_copy(sh, to, from->v.data);
  return TM_OK;
}

static tm_status shard_read_dense(tm_shard *sh, tm_ps_read *rd, tm_err *err) {
  bool share = !rd->dst.data && !tm_shard_is_table(sh) &&
               (!sh->old || !shard_held(sh->old)); /* (1) */
  if (!share) return shard_read_copy(sh, rd, sh->cur, err);
  rd->out = tm_tensor_ref(sh->cur);
  return TM_OK;
}

static tm_status shard_read_slot(tm_shard *sh, tm_ps_read *rd, tm_err *err) {
  tm_slot *k = rd->slot ? tm_shard_slot(sh, rd->optimizer, rd->slot) : NULL;
  if (!k)
    return tm_fail(err, TM_ENOTFOUND,
                   "variable %" PRIx64
                   " has no slot \"%s\" of this optimizer yet: slots are made by its "
                   "first update",
                   sh->uid, rd->slot ? rd->slot : "");
  return shard_read_copy(sh, rd, k->t, err);
}

static void shard_read_rows(tm_shard *sh, tm_ps_read *rd) {
  const int64_t *ids = rd->ids.data;
  int64_t n = rd->ids.shape.dim[0];
  const char *base = sh->cur->v.data;
  char *to = rd->dst.data;
  for (int64_t i = 0; i < n; i++) {
    if (i + SHARD_AHEAD < n) shard_prefetch(sh, base, ids[i + SHARD_AHEAD]);
    void *dst = rd->rows_at ? rd->rows_at[i] : to + (size_t)i * sh->row_bytes;
    tm_stripe *st = tm_shard_stripe(sh, ids[i]);
    tm_stripe_lock(st);
    if (sh->row_bytes)
      memcpy(dst, base + (size_t)ids[i] * sh->row_bytes, sh->row_bytes);
    tm_stripe_unlock(st);
  }
}

tm_status tm_shard_read(tm_shard *sh, tm_ps_read *rd, tm_err *err) {
  if (rd->kind == TM_PS_DENSE) return shard_read_dense(sh, rd, err);
  if (rd->kind == TM_PS_SLOT) return shard_read_slot(sh, rd, err);
  shard_read_rows(sh, rd);
  return TM_OK;
}

/* --- counting --- */

size_t tm_shard_bytes(tm_shard *sh) {
  size_t one = (size_t)sh->rows * sh->row_bytes;
  tm_shard_lock(sh);
  size_t bytes = one * (sh->old ? 2 : 1);
  if (atomic_load(&sh->touched)) bytes += tm_shard_words(sh) * sizeof(atomic_ullong);
  tm_shard_unlock(sh);
  return bytes + one * (size_t)tm_shard_count_slots(sh);
}

uint64_t tm_shard_count_slots(tm_shard *sh) {
  uint64_t n = 0;
  for (tm_slot *k = atomic_load_explicit(&sh->slots, memory_order_acquire); k;
       k = k->next)
    n++;
  return n;
}
