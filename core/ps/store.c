#include "ps/store.h"

#include <inttypes.h>
#include <sched.h>
#include <string.h>

#include "base/check.h"
#include "base/map.h"
#include "base/mem.h"
#include "ps/copy.h"
#include "ps/keep.h"
#include "ps/shard.h"
#include "ps/snapshot.h"
#include "ps/store_parts.h"
#include "ps/tokens.h"

/*
 * Design.  A request is worked off in phases: find and check everything, take the
 * token, lock the dense shards, make them writable, apply, unlock.  What can fail comes
 * before the first change, so an UPDATE applies in full or not at all, and the dense
 * shards of one request change at one moment; a READ's dense shards are taken at one
 * moment too.
 *
 * Invariants:
 *   (1) `map` holds, by uid, a list of the variable's shards here.  Guarded by `lock`.
 *   (2) A plan holds a reference on each of its shards.
 *   (3) Shards are locked in order of their addresses, each once.
 *   (4) `applying` counts the UPDATEs that change shards or tokens; while `still` is
 *       set it only falls.  At 0 the tokens are those of what is in the shards.
 */
struct tm_store {
  char task[48];
  pthread_rwlock_t lock;
  tm_map *map;
  tm_tokens *tokens;
  tm_rounds *rounds;
  atomic_ullong reads, updates, bytes_in, bytes_out;
  pthread_mutex_t still_mu;
  pthread_cond_t go;
  atomic_int applying;
  atomic_bool still; /* changed under still_mu */
  atomic_bool keep;  /* changed while it stands still: a snapshot keeps old rows */
  bool read;         /* under still_mu: a snapshot is being read */
};

enum { STORE_INLINE = 32 };

/* The shards of one half of a request. */
typedef struct store_plan {
  int32_t n, nlock;
  tm_shard **sh;     /* n, one an item */
  tm_shard **locked; /* dense ones in order of address, each once */
  tm_shard *few[2 * STORE_INLINE];
} store_plan;

tm_status tm_store_new(const char *task, tm_store **out) {
  *out = NULL;
  tm_store *s = tm_calloc(1, sizeof *s);
  if (!s) return TM_ENOMEM;
  strncpy(s->task, task, sizeof s->task - 1);
  if (tm_map_new(&s->map) || tm_tokens_new(&s->tokens) || tm_rounds_new(&s->rounds)) {
    tm_map_free(s->map);
    tm_tokens_free(s->tokens);
    tm_free(s, sizeof *s);
    return TM_ENOMEM;
  }
  pthread_rwlock_init(&s->lock, NULL);
  pthread_mutex_init(&s->still_mu, NULL);
  pthread_cond_init(&s->go, NULL);
  *out = s;
  return TM_OK;
}

static void store_free_list(tm_shard *sh) {
  for (tm_shard *next; sh; sh = next) {
    next = sh->next;
    tm_shard_unref(sh);
  }
}

void tm_store_free(tm_store *s) {
  if (!s) return;
  size_t pos = 0;
  void *list;
  while (tm_map_next(s->map, &pos, NULL, NULL, NULL, &list)) store_free_list(list);
  tm_map_free(s->map);
  tm_tokens_free(s->tokens);
  tm_rounds_free(s->rounds);
  pthread_rwlock_destroy(&s->lock);
  pthread_mutex_destroy(&s->still_mu);
  pthread_cond_destroy(&s->go);
  tm_free(s, sizeof *s);
}

const char *tm_store_task(const tm_store *s) { return s->task; }

/* --- shards come and go --- */

static tm_shard *store_find(tm_store *s, uint64_t uid, uint32_t shard) {
  tm_shard *sh = tm_map_get(s->map, uid);
  while (sh && sh->index != shard) sh = sh->next;
  return sh;
}

static tm_status store_same(const tm_shard *sh, const tm_shard_spec *sp, tm_err *err) {
  if (sh->dtype == sp->dtype && tm_shape_equal(&sh->shape, &sp->shape)) return TM_OK;
  char a[96], b[96];
  return tm_fail(err, TM_EEXISTS, "variable %" PRIx64 " exists as %s %s, not %s %s",
                 sp->uid, tm_dtype_name(sh->dtype),
                 tm_shape_text(&sh->shape, a, sizeof a), tm_dtype_name(sp->dtype),
                 tm_shape_text(&sp->shape, b, sizeof b));
}

static tm_status store_insert(tm_store *s, tm_shard *sh, tm_err *err) {
  sh->next = tm_map_get(s->map, sh->uid);
  if (tm_map_put(s->map, sh->uid, sh)) return tm_nomem(err, "a variable's entry");
  return TM_OK;
}

static tm_status store_create(tm_store *s, const tm_shard_spec *sp, tm_err *err) {
  pthread_rwlock_rdlock(&s->lock);
  tm_shard *there = store_find(s, sp->uid, sp->shard);
  tm_status st = there ? store_same(there, sp, err) : TM_OK;
  pthread_rwlock_unlock(&s->lock);
  if (there || st) return st;
  tm_shard *sh;
  TM_TRY(tm_shard_new(sp, &sh, err)); /* outside the lock: it may take long */
  pthread_rwlock_wrlock(&s->lock);
  there = store_find(s, sp->uid, sp->shard);
  st = there ? store_same(there, sp, err) : store_insert(s, sh, err);
  pthread_rwlock_unlock(&s->lock);
  if (there || st) tm_shard_unref(sh);
  return st;
}

static void store_name_task(const tm_store *s, tm_err *err) {
  if (err && !err->task[0]) memcpy(err->task, s->task, sizeof s->task);
}

tm_status tm_store_create(tm_store *s, const tm_shard_spec *sp, tm_err *err) {
  tm_status st = store_create(s, sp, err);
  if (st) store_name_task(s, err);
  return st;
}

/* Unlink from the list of its variable; the caller holds the lock. */
static tm_shard *store_take_out(tm_store *s, uint64_t uid, uint32_t shard) {
  tm_shard *sh = store_find(s, uid, shard), *first = tm_map_get(s->map, uid);
  if (!sh) return NULL;
  if (first != sh) {
    while (first->next != sh) first = first->next;
    first->next = sh->next;
  } else if (!sh->next || tm_map_put(s->map, uid, sh->next)) {
    tm_map_del(s->map, uid); /* replacing a value in place does not fail */
  }
  return sh;
}

void tm_store_drop(tm_store *s, uint64_t uid, uint32_t shard) {
  pthread_rwlock_wrlock(&s->lock);
  tm_shard *sh = store_take_out(s, uid, shard);
  pthread_rwlock_unlock(&s->lock);
  tm_shard_unref(sh);
}

/* --- moments without UPDATEs --- */

static void store_enter(tm_store *s) {
  for (;;) {
    atomic_fetch_add(&s->applying, 1);
    if (!atomic_load(&s->still)) return;
    atomic_fetch_sub(&s->applying, 1);
    pthread_mutex_lock(&s->still_mu);
    while (atomic_load(&s->still)) pthread_cond_wait(&s->go, &s->still_mu);
    pthread_mutex_unlock(&s->still_mu);
  }
}

static void store_leave(tm_store *s) { atomic_fetch_sub(&s->applying, 1); }

void tm_store_still(tm_store *s) {
  pthread_mutex_lock(&s->still_mu);
  while (atomic_load(&s->still)) pthread_cond_wait(&s->go, &s->still_mu);
  atomic_store(&s->still, true);
  pthread_mutex_unlock(&s->still_mu);
  while (atomic_load(&s->applying) > 0) sched_yield();
}

void tm_store_go(tm_store *s) {
  pthread_mutex_lock(&s->still_mu);
  atomic_store(&s->still, false);
  pthread_cond_broadcast(&s->go);
  pthread_mutex_unlock(&s->still_mu);
}

void tm_store_keep(tm_store *s, bool on) { atomic_store(&s->keep, on); }

bool tm_store_claim(tm_store *s) {
  pthread_mutex_lock(&s->still_mu);
  bool mine = !s->read;
  s->read = true;
  pthread_mutex_unlock(&s->still_mu);
  return mine;
}

void tm_store_unclaim(tm_store *s) {
  pthread_mutex_lock(&s->still_mu);
  s->read = false;
  pthread_mutex_unlock(&s->still_mu);
}

tm_shard *tm_store_shard(tm_store *s, uint64_t uid, uint32_t shard) {
  pthread_rwlock_rdlock(&s->lock);
  tm_shard *sh = store_find(s, uid, shard);
  if (sh) tm_shard_ref(sh);
  pthread_rwlock_unlock(&s->lock);
  return sh;
}

/* --- plans --- */

static size_t store_plan_bytes(int32_t n) { return (size_t)n * 2 * sizeof(tm_shard *); }

static tm_status store_plan_init(store_plan *p, int32_t n, tm_err *err) {
  p->n = p->nlock = 0;
  p->sh = p->few;
  if (n < 0 || n > TM_PS_MAX_ITEMS)
    return tm_fail(err, TM_EINVAL, "a request of %d items: at most %d", n,
                   (int)TM_PS_MAX_ITEMS);
  if (n > STORE_INLINE && !(p->sh = tm_malloc(store_plan_bytes(n))))
    return tm_nomem(err, "a request");
  p->locked = p->sh + n;
  return TM_OK;
}

static void store_plan_release(store_plan *p, int32_t n) {
  for (int32_t i = 0; i < p->n; i++) tm_shard_unref(p->sh[i]);
  if (p->sh != p->few) tm_free(p->sh, store_plan_bytes(n));
}

static tm_status store_plan_add(tm_store *s, store_plan *p, uint64_t uid,
                                uint32_t shard, tm_err *err) {
  tm_shard *sh = tm_store_shard(s, uid, shard);
  if (!sh)
    return tm_fail(err, TM_ENOTFOUND,
                   "variable %" PRIx64
                   " (shard %u) is not here: it was dropped, or this "
                   "ps was started anew",
                   uid, (unsigned)shard);
  p->sh[p->n++] = sh;
  return TM_OK;
}

/* Note a shard to lock: sorted insertion, once (3). */
static void store_plan_lock(store_plan *p, tm_shard *sh) {
  int32_t lo = 0, hi = p->nlock;
  while (lo < hi) {
    int32_t mid = (lo + hi) / 2;
    if ((uintptr_t)p->locked[mid] < (uintptr_t)sh)
      lo = mid + 1;
    else
      hi = mid;
  }
  if (lo < p->nlock && p->locked[lo] == sh) return;
  memmove(&p->locked[lo + 1], &p->locked[lo],
          (size_t)(p->nlock - lo) * sizeof(tm_shard *));
  p->locked[lo] = sh;
  p->nlock++;
}

static void store_lock_all(store_plan *p) {
  for (int32_t i = 0; i < p->nlock; i++) tm_shard_lock(p->locked[i]);
}

static void store_unlock_all(store_plan *p) {
  for (int32_t i = p->nlock; i-- > 0;) tm_shard_unlock(p->locked[i]);
}

/* --- checks --- */

static tm_status store_check_view(const tm_shard *sh, const tm_view *v,
                                  const tm_shape *want, const char *what, tm_err *err) {
  if (v->dtype == sh->dtype && tm_shape_equal(&v->shape, want)) return TM_OK;
  char a[96], b[96];
  return tm_fail(err, TM_EINVAL, "variable %" PRIx64 ": %s is %s %s, not %s %s",
                 sh->uid, what, tm_dtype_name(v->dtype),
                 tm_shape_text(&v->shape, a, sizeof a), tm_dtype_name(sh->dtype),
                 tm_shape_text(want, b, sizeof b));
}

static tm_status store_check_ids(const tm_shard *sh, const tm_view *ids, tm_err *err) {
  if (sh->shape.rank < 1)
    return tm_fail(err, TM_EINVAL, "variable %" PRIx64 " is a scalar: it has no rows",
                   sh->uid);
  if (ids->dtype != TM_I64 || ids->shape.rank != 1 || !ids->data)
    return tm_fail(err, TM_EINVAL, "variable %" PRIx64 ": row ids are a list of int64",
                   sh->uid);
  const int64_t *id = ids->data;
  for (int64_t i = 0; i < ids->shape.dim[0]; i++)
    if (id[i] < 0 || id[i] >= sh->rows)
      return tm_fail(err, TM_EINVAL,
                     "variable %" PRIx64 " has no row %" PRId64
                     ": shard %u has %" PRId64 " rows, ids count from 0",
                     sh->uid, id[i], (unsigned)sh->index, sh->rows);
  return TM_OK;
}

static tm_status store_check_rule(tm_shard *sh, const tm_ps_update *up, tm_err *err) {
  const tm_rule *rule = up->rule ? tm_rule_find(up->rule) : NULL;
  if (!rule)
    return tm_fail(err, TM_EINVAL, "update rule \"%s\" is not known to this ps",
                   up->rule ? up->rule : "");
  if (!tm_dtype_is_float(sh->dtype))
    return tm_fail(err, TM_EINVAL, "variable %" PRIx64 ": %s cannot be trained by %s",
                   sh->uid, tm_dtype_name(sh->dtype), rule->name);
  if (up->nhyper < rule->min_hyper || up->nhyper > rule->max_hyper || up->t < 1)
    return tm_fail(err, TM_EINVAL,
                   "%s: %d hyper-parameters and step %" PRId64
                   "; it takes %d to %d, steps count from 1",
                   rule->name, up->nhyper, up->t, rule->min_hyper, rule->max_hyper);
  return tm_shard_make_slots(sh, up->optimizer, rule, up->hyper, err);
}

static tm_status store_check_update(tm_shard *sh, const tm_ps_update *up, tm_err *err) {
  tm_shape want = sh->shape;
  bool rows = tm_ps_is_rows(up->kind);
  if (up->kind < TM_PS_ASSIGN || up->kind > TM_PS_APPLY_ROWS || (!rows && up->ids.data))
    return tm_fail(err, TM_EINVAL, "update of kind %d is not known", (int)up->kind);
  if (rows) {
    TM_TRY(store_check_ids(sh, &up->ids, err));
    want.dim[0] = up->ids.shape.dim[0];
  }
  TM_TRY(store_check_view(sh, &up->value, &want, "the value", err));
  if (tm_ps_is_sum(up->kind) && sh->dtype == TM_BOOL)
    return tm_fail(err, TM_EINVAL, "variable %" PRIx64 ": bool values do not add up",
                   sh->uid);
  if (up->kind == TM_PS_APPLY || up->kind == TM_PS_APPLY_ROWS)
    TM_TRY(store_check_rule(sh, up, err));
  return rows ? tm_shard_make_table(sh, err) : TM_OK;
}

static tm_status store_check_read(tm_shard *sh, const tm_ps_read *rd, tm_err *err) {
  tm_shape want = sh->shape;
  if (rd->kind < TM_PS_DENSE || rd->kind > TM_PS_SLOT)
    return tm_fail(err, TM_EINVAL, "read of kind %d is not known", (int)rd->kind);
  if (rd->kind != TM_PS_ROWS)
    return rd->dst.data ? store_check_view(sh, &rd->dst, &want, "its place", err)
                        : TM_OK;
  TM_TRY(store_check_ids(sh, &rd->ids, err));
  want.dim[0] = rd->ids.shape.dim[0];
  TM_TRY(store_check_view(sh, &rd->dst, &want, "the place of rows", err));
  if (!rd->dst.data && !rd->rows_at)
    return tm_fail(err, TM_EINVAL, "variable %" PRIx64 ": rows have no place", sh->uid);
  return tm_shard_make_table(sh, err);
}

/* --- the two halves --- */

/* The op that asked for what failed. */
static tm_status store_name_op(tm_ps_request *rq, tm_status st, const char *op) {
  if (!rq->err.op[0]) strncpy(rq->err.op, op, sizeof rq->err.op - 1);
  return st;
}

static const char *store_update_op(tm_ps_up_kind kind) {
  if (kind >= TM_PS_APPLY)
    return kind == TM_PS_APPLY ? "apply_optimizer" : "apply_optimizer_rows";
  return tm_ps_is_rows(kind) ? "scatter_variable" : "assign_variable";
}

/* It is kept aside until its round ends. */
static bool store_waits(const tm_ps_request *rq, const tm_ps_update *up) {
  return rq->token.round && tm_ps_waits(up);
}

static tm_status store_plan_updates(tm_store *s, tm_ps_request *rq, store_plan *p) {
  for (int32_t i = 0; i < rq->nup; i++) {
    const tm_ps_update *up = &rq->up[i];
    tm_status st = store_plan_add(s, p, up->uid, up->shard, &rq->err);
    if (st == TM_OK) st = store_check_update(p->sh[i], up, &rq->err);
    if (st) return store_name_op(rq, st, store_update_op(up->kind));
    if (!tm_ps_is_rows(up->kind) && !store_waits(rq, up)) store_plan_lock(p, p->sh[i]);
  }
  return TM_OK;
}

static tm_status store_apply_all(tm_ps_request *rq, store_plan *p) {
  tm_status st = TM_OK;
  int64_t patience_ns = TM_SNAPSHOT_PATIENCE_NS;
  store_lock_all(p);
  for (int32_t i = 0; i < p->nlock && st == TM_OK; i++)
    if (!tm_shard_is_table(p->locked[i]))
      st = tm_shard_writable(p->locked[i], &rq->err);
  for (int32_t i = 0; i < rq->nup && st == TM_OK; i++)
    if (!store_waits(rq, &rq->up[i]))
      tm_shard_apply(p->sh[i], &rq->up[i], &patience_ns);
  store_unlock_all(p);
  return st;
}

static tm_status store_updates(tm_store *s, tm_ps_request *rq) {
  store_plan p;
  TM_TRY(store_plan_init(&p, rq->nup, &rq->err));
  tm_status st = store_plan_updates(s, rq, &p);
  tm_token_use use;
  if (st == TM_OK) {
    store_enter(s); /* before its token is taken: see (4) */
    st = tm_tokens_take(s->tokens, &rq->token, &use, &rq->err);
    if (st == TM_OK) {
      if (rq->token.round) /* also of a closure that runs again, see rounds.h */
        st = tm_rounds_keep(s->rounds, &rq->token, rq->up, rq->nup, &rq->err);
      if (st == TM_OK && !use.repeat) st = store_apply_all(rq, &p);
      tm_tokens_end(s->tokens, &use, st == TM_OK);
    }
    store_leave(s);
  }
  store_plan_release(&p, rq->nup);
  return st;
}

/* --- the end of a round --- */

/* Those whose shards are here. */
static tm_status store_plan_means(tm_store *s, tm_ps_request *rq, tm_rounds_means *m,
                                  store_plan *p) {
  rq->nup = 0;
  for (int32_t i = 0; i < m->n; i++) {
    tm_shard *sh = tm_store_shard(s, m->up[i].uid, m->up[i].shard);
    if (!sh) continue;
    p->sh[p->n++] = sh;
    m->up[rq->nup] = m->up[i];
    tm_status st = store_check_update(sh, &m->up[rq->nup], &rq->err);
    if (st) return store_name_op(rq, st, store_update_op(m->up[i].kind));
    if (!tm_ps_is_rows(m->up[i].kind)) store_plan_lock(p, sh);
    rq->nup++;
  }
  return TM_OK;
}

static tm_status store_apply_means(tm_store *s, tm_rounds_means *m, tm_err *err) {
  store_plan p;
  tm_ps_request rq = {.up = m->up};
  TM_TRY(store_plan_init(&p, m->n, err));
  tm_status st = store_plan_means(s, &rq, m, &p);
  if (st == TM_OK) st = store_apply_all(&rq, &p);
  if (st && err) *err = rq.err;
  store_plan_release(&p, m->n);
  return st;
}

tm_status tm_store_commit(tm_store *s, const tm_ps_commit *c, tm_err *err) {
  tm_rounds_means m;
  store_enter(s);
  tm_status st = TM_OK;
  if (tm_rounds_begin(s->rounds, c)) {
    st = tm_rounds_mean(s->rounds, c, &m, err);
    if (st == TM_OK) st = store_apply_means(s, &m, err);
    tm_rounds_end(s->rounds, c, &m);
  }
  store_leave(s);
  if (st) store_name_task(s, err);
  return st;
}

bool tm_store_commit_waits(tm_store *s) {
  return atomic_load_explicit(&s->keep, memory_order_relaxed);
}

/* --- READs --- */

static tm_status store_plan_reads(tm_store *s, tm_ps_request *rq, store_plan *p) {
  for (int32_t i = 0; i < rq->nrd; i++) {
    const tm_ps_read *rd = &rq->rd[i];
    tm_status st = store_plan_add(s, p, rd->uid, rd->shard, &rq->err);
    if (st == TM_OK) st = store_check_read(p->sh[i], rd, &rq->err);
    if (st)
      return store_name_op(rq, st,
                           rd->kind == TM_PS_ROWS   ? "gather_variable"
                           : rd->kind == TM_PS_SLOT ? "read_slot"
                                                    : "read_variable");
    if (rd->kind != TM_PS_ROWS) store_plan_lock(p, p->sh[i]);
  }
  return TM_OK;
}

static void store_forget_reads(tm_ps_request *rq) {
  for (int32_t i = 0; i < rq->nrd; i++) {
    tm_tensor_unref(rq->rd[i].out);
    rq->rd[i].out = NULL;
  }
}

static tm_status store_reads(tm_store *s, tm_ps_request *rq) {
  store_plan p;
  for (int32_t i = 0; i < rq->nrd; i++) rq->rd[i].out = NULL;
  TM_TRY(store_plan_init(&p, rq->nrd, &rq->err));
  tm_status st = store_plan_reads(s, rq, &p);
  if (st == TM_OK) {
    store_lock_all(&p);
    for (int32_t i = 0; i < rq->nrd && st == TM_OK; i++)
      if (rq->rd[i].kind != TM_PS_ROWS)
        st = tm_shard_read(p.sh[i], &rq->rd[i], &rq->err);
    store_unlock_all(&p);
    for (int32_t i = 0; i < rq->nrd && st == TM_OK; i++)
      if (rq->rd[i].kind == TM_PS_ROWS)
        st = tm_shard_read(p.sh[i], &rq->rd[i], &rq->err);
  }
  if (st) store_forget_reads(rq);
  store_plan_release(&p, rq->nrd);
  return st;
}

static void store_count(tm_store *s, const tm_ps_request *rq) {
  uint64_t in = 0, out = 0;
  for (int32_t i = 0; i < rq->nup; i++) in += tm_view_bytes(&rq->up[i].value);
  for (int32_t i = 0; i < rq->nrd && rq->rd_status == TM_OK; i++)
    out += tm_view_bytes(rq->rd[i].out ? &rq->rd[i].out->v : &rq->rd[i].dst);
  atomic_fetch_add(&s->updates, rq->nup > 0);
  atomic_fetch_add(&s->reads, rq->nrd > 0);
  atomic_fetch_add(&s->bytes_in, in);
  atomic_fetch_add(&s->bytes_out, out);
}

tm_status tm_store_handle(tm_store *s, tm_ps_request *rq) {
  tm_err_clear(&rq->err);
  rq->up_status = rq->nup ? store_updates(s, rq) : TM_OK;
  tm_err first = rq->err;
  rq->rd_status = rq->nrd ? store_reads(s, rq) : TM_OK;
  if (rq->up_status) rq->err = first;
  tm_status worse = rq->up_status ? rq->up_status : rq->rd_status;
  if (worse) store_name_task(s, &rq->err);
  if (rq->token.closure) store_count(s, rq);
  return worse;
}

/* Rows of it change where they lie; its keep is there until store_leave. */
static bool store_is_crowded(tm_store *s, const tm_ps_request *rq) {
  tm_keep *any = NULL;
  size_t most = 0;
  for (int32_t i = 0; i < rq->nup; i++) {
    const tm_ps_update *up = &rq->up[i];
    tm_shard *sh = tm_store_shard(s, up->uid, up->shard);
    if (!sh) continue;
    tm_keep *k = atomic_load_explicit(&sh->keep, memory_order_acquire);
    bool rows = up->ids.data && up->ids.shape.rank == 1;
    most += tm_keep_most(k, rows ? up->ids.shape.dim[0] : -1);
    if (k) any = k;
    tm_shard_unref(sh); /* the snapshot has a reference too */
  }
  return any && tm_keep_crowded(any, most);
}

bool tm_store_must_wait(tm_store *s, const tm_ps_request *rq, bool busy) {
  if (rq->nup == 0 || !atomic_load_explicit(&s->keep, memory_order_relaxed))
    return false;
  if (busy) return true;
  store_enter(s);
  bool crowded = store_is_crowded(s, rq);
  store_leave(s);
  return crowded;
}

/* --- restoring --- */

enum { STORE_SLOTS = 10 }; /* numbers of the rule "slot" */

static tm_status store_check_put(const tm_shard *sh, const tm_ps_place *p,
                                 const tm_view *v, tm_err *err) {
  tm_shape want = sh->shape;
  int64_t n = v->shape.rank ? v->shape.dim[0] : 1;
  if (want.rank && v->shape.rank) want.dim[0] = n;
  TM_TRY(store_check_view(sh, v, &want, "what a checkpoint has of it", err));
  if (p->first < 0 || p->first > sh->rows || n > sh->rows - p->first)
    return tm_fail(err, TM_EINVAL,
                   "variable %" PRIx64 ": shard %u has %" PRId64 " rows, not %" PRId64
                   " from row %" PRId64,
                   sh->uid, (unsigned)sh->index, sh->rows, n, p->first);
  if (p->slot >= STORE_SLOTS || (p->slot >= 0 && !tm_dtype_is_float(sh->dtype)))
    return tm_fail(err, TM_EINVAL, "variable %" PRIx64 ": there is no slot number %d",
                   sh->uid, (int)p->slot);
  return TM_OK;
}

tm_status tm_store_put(tm_store *s, const tm_ps_place *p, const tm_view *rows,
                       tm_err *err) {
  store_plan one;
  TM_TRY(store_plan_init(&one, 1, err));
  tm_status st = store_plan_add(s, &one, p->uid, p->shard, err);
  if (st == TM_OK) st = store_check_put(one.sh[0], p, rows, err);
  if (st == TM_OK) {
    store_enter(s);
    st = tm_shard_put(one.sh[0], p, rows, err);
    store_leave(s);
  }
  if (st) store_name_task(s, err);
  store_plan_release(&one, 1);
  return st;
}

void tm_store_refuse(tm_store *s, uint64_t incarnation) {
  tm_tokens_refuse(s->tokens, incarnation);
}

void tm_store_look(tm_store *s, tm_token_list *q) {
  if (q && q->n) tm_tokens_look(s->tokens, q->closure, q->n, q->turns);
}

tm_status tm_store_add_tokens(tm_store *s, const tm_token_list *q, tm_err *err) {
  tm_status st = tm_tokens_add(s->tokens, q->closure, q->turns, q->n, err);
  if (st) store_name_task(s, err);
  return st;
}

void tm_store_forget_tokens(tm_store *s) {
  tm_tokens_forget(s->tokens);
  tm_rounds_forget(s->rounds);
}

void tm_store_get_stats(tm_store *s, tm_store_stats *out) {
  memset(out, 0, sizeof *out);
  out->reads = atomic_load(&s->reads);
  out->updates = atomic_load(&s->updates);
  out->bytes_in = atomic_load(&s->bytes_in);
  out->bytes_out = atomic_load(&s->bytes_out);
  pthread_rwlock_rdlock(&s->lock);
  size_t pos = 0;
  void *list;
  while (tm_map_next(s->map, &pos, NULL, NULL, NULL, &list))
    for (tm_shard *sh = list; sh; sh = sh->next) {
      out->variables += sh->user;
      out->slots += tm_shard_count_slots(sh);
      out->bytes_held += tm_shard_bytes(sh);
    }
  pthread_rwlock_unlock(&s->lock);
  out->bytes_held += tm_rounds_bytes(s->rounds);
}

/* --- copies --- */

tm_shard *tm_store_hold(tm_store *s, uint64_t uid, uint32_t shard) {
  pthread_rwlock_rdlock(&s->lock);
  tm_shard *sh = store_find(s, uid, shard);
  if (sh) tm_shard_ref(sh);
  pthread_rwlock_unlock(&s->lock);
  return sh;
}

bool tm_store_has(tm_store *s, uint64_t uid, uint32_t shard) {
  pthread_rwlock_rdlock(&s->lock);
  bool has = store_find(s, uid, shard) != NULL;
  pthread_rwlock_unlock(&s->lock);
  return has;
}

/* Into out (NULL: only count); lock held. */
static size_t store_list(tm_store *s, tm_shard_key *out) {
  size_t pos = 0, n = 0;
  void *list;
  while (tm_map_next(s->map, &pos, NULL, NULL, NULL, &list))
    for (tm_shard *sh = list; sh; sh = sh->next, n++)
      if (out) out[n] = (tm_shard_key){sh->uid, sh->index};
  return n;
}

tm_status tm_store_keys(tm_store *s, tm_shard_key **out, size_t *n) {
  pthread_rwlock_rdlock(&s->lock);
  *n = store_list(s, NULL);
  *out = *n ? tm_malloc(*n * sizeof **out) : NULL;
  bool ok = *out || *n == 0;
  if (*out) store_list(s, *out);
  pthread_rwlock_unlock(&s->lock);
  return ok ? TM_OK : TM_ENOMEM;
}

void tm_store_pack_tokens(tm_store *s, tm_packer *w) {
  tm_pack_array(w, 2);
  tm_tokens_pack(s->tokens, w);
  tm_pack_uint(w, tm_rounds_last(s->rounds));
}

void tm_store_unpack_tokens(tm_store *s, tm_unpacker *r) {
  tm_unpack_array(r, 2, 2);
  tm_tokens_unpack(s->tokens, r);
  tm_rounds_set_last(s->rounds, tm_unpack_uint(r));
}

tm_status tm_store_waiting(tm_store *s, const tm_shard_key *key, tm_rounds_each fn,
                           void *ud, tm_err *err) {
  return tm_rounds_of_shard(s->rounds, key->uid, key->shard, fn, ud, err);
}
