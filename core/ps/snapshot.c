#include "ps/snapshot.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/mem.h"
#include "ps/keep.h"
#include "ps/store_parts.h"

/*
 * Design.  The store stands still while the parts are noted: dense ones by reference,
 * tables by hanging a `keep` on their shard.  From then on a block of a table changes
 * hands under its stripe: its first overwriter copies it (0 to a pointer), the reader
 * takes it (0 or a pointer to READ) or puts the copy away (a pointer to AWAY).
 *
 * Invariants:
 *   (1) Each part holds a reference on its shard, and on its tensor if it is dense.
 *   (2) A copy is `listed` unless the reader has it; pool.bytes is the size of all
 *       copies that were made by writers and not given back.
 *   (3) A shard's `keep` is set and cleared only while the store stands still, so an
 *       UPDATE sees the same list from its begin to its end.
 *   (4) After `over` nothing is kept; then the snapshot is being freed or `status` says
 *       that it is worth nothing.
 */
/* SHARE: so many threads may copy what they were told there is room for. */
enum { SNAPSHOT_BLOCK = 512, SNAPSHOT_SHARE = 8 };

typedef struct snapshot_part {
  tm_snapshot_part pub;
  tm_shard *sh;
  tm_tensor *t; /* dense */
  bool values;  /* t is the shard's version, not a slot */
  tm_slot *slot;
  uint64_t mark, base;
  tm_keep keep; /* kept != NULL: a table */
} snapshot_part;

struct tm_snapshot {
  tm_store *store;
  int32_t n;
  bool hung; /* the keeps are on their shards */
  tm_keep_pool pool;
  snapshot_part part[];
};

/* --- blocks --- */

/* Bytes of a block in the part, and where they begin. */
static size_t keep_size(const tm_keep *k, int64_t block) {
  if (k->bits) return (size_t)(k->rank[block + 1] - k->rank[block]) * k->sh->row_bytes;
  size_t at = (size_t)block * k->block_bytes;
  return k->bytes - at < k->block_bytes ? k->bytes - at : k->block_bytes;
}

static uint64_t keep_at(const tm_keep *k, int64_t block) {
  return k->bits ? (uint64_t)k->rank[block] * k->sh->row_bytes
                 : (uint64_t)block * k->block_bytes;
}

/* The block with row number `n` of a diff. */
static int64_t keep_find_row(const tm_keep *k, int64_t n) {
  int64_t lo = 0, hi = k->nblock;
  while (hi - lo > 1) {
    int64_t mid = lo + (hi - lo) / 2;
    if (k->rank[mid] <= n)
      lo = mid;
    else
      hi = mid;
  }
  return lo;
}

static int64_t keep_find(const tm_keep *k, uint64_t at) {
  if (k->bits) return keep_find_row(k, (int64_t)(at / k->sh->row_bytes));
  return (int64_t)(at / k->block_bytes);
}

static bool keep_has(const tm_keep *k, int64_t row) {
  return k->bits[row >> 6] >> (row & 63) & 1;
}

static tm_stripe *keep_stripe(const tm_keep *k, int64_t block) {
  return tm_shard_stripe(k->sh, block << k->shift);
}

/* Rows of a block: [*from, *to). */
static void keep_rows(const tm_keep *k, int64_t block, int64_t *from, int64_t *to) {
  *from = block << k->shift;
  *to = (block + 1) << k->shift;
  if (*to > k->sh->rows) *to = k->sh->rows;
}

/* The bytes of a block that the part has, as they are now (its stripe is held). */
static void keep_copy_bytes(const tm_keep *k, int64_t block, unsigned char *to) {
  int64_t row, end;
  if (!k->bits) {
    memcpy(to, k->data + (size_t)block * k->block_bytes, keep_size(k, block));
    return;
  }
  for (keep_rows(k, block, &row, &end); row < end; row++) {
    if (!keep_has(k, row)) continue;
    memcpy(to, k->data + (size_t)row * k->sh->row_bytes, k->sh->row_bytes);
    to += k->sh->row_bytes;
  }
}

static size_t snapshot_size(int32_t n) {
  return sizeof(tm_snapshot) + (size_t)n * sizeof(snapshot_part);
}

/* --- copies --- */

static void pool_give_up(tm_keep_pool *p, tm_status why) {
  pthread_mutex_lock(&p->mu);
  if (p->status == TM_OK) p->status = why;
  atomic_store(&p->over, true);
  pthread_cond_broadcast(&p->room);
  pthread_mutex_unlock(&p->mu);
}

static tm_keep_copy *copy_new(tm_keep *k, int64_t block, size_t n) {
  tm_keep_copy *c = tm_malloc(sizeof *c + n);
  if (!c) return NULL;
  *c = (tm_keep_copy){
      .keep = k, .block = block, .n = n, .data = (unsigned char *)c + sizeof *c};
  keep_copy_bytes(k, block, c->data);
  return c;
}

/* What a copy of n bytes takes. */
static size_t copy_size(size_t n) { return sizeof(tm_keep_copy) + n; }

static void copy_free(tm_keep_copy *c) { tm_free(c, copy_size(c->n)); }

static bool pool_reserve(tm_keep_pool *p, size_t n) {
  pthread_mutex_lock(&p->mu);
  bool fits = p->bytes == 0 || p->bytes + n <= TM_SNAPSHOT_ASIDE;
  if (fits) p->bytes += n;
  pthread_mutex_unlock(&p->mu);
  return fits;
}

static void pool_release(tm_keep_pool *p, size_t n) {
  pthread_mutex_lock(&p->mu);
  p->bytes -= n;
  p->turn++;
  pthread_cond_broadcast(&p->room);
  pthread_mutex_unlock(&p->mu);
}

static void pool_list(tm_keep_pool *p, tm_keep_copy *c) {
  pthread_mutex_lock(&p->mu);
  c->before = p->tail;
  *(p->tail ? &p->tail->next : &p->head) = c;
  p->tail = c;
  c->listed = true;
  pthread_mutex_unlock(&p->mu);
}

/* mu held. */
static void pool_unlist(tm_keep_pool *p, tm_keep_copy *c) {
  *(c->before ? &c->before->next : &p->head) = c->next;
  *(c->next ? &c->next->before : &p->tail) = c->before;
  c->next = c->before = NULL;
  c->listed = false;
}

/* False: no room. */
static bool keep_block(tm_keep *k, int64_t block) {
  if (k->kept[block] || atomic_load(&k->pool->over)) return true;
  size_t n = keep_size(k, block);
  if (n == 0) return true;
  if (!pool_reserve(k->pool, copy_size(n))) return false;
  tm_keep_copy *c = copy_new(k, block, n);
  if (c) {
    k->kept[block] = (uint64_t)(uintptr_t)c;
    pool_list(k->pool, c);
  } else {
    pool_release(k->pool, copy_size(n));
    pool_give_up(k->pool, TM_ENOMEM);
  }
  return true;
}

bool tm_keep_rows(tm_keep *k, int64_t from, int64_t to) {
  for (; k; k = k->next)
    for (int64_t b = from >> k->shift; b <= (to - 1) >> k->shift; b++)
      if (!keep_block(k, b)) return false;
  return true;
}

static void pool_wait(tm_keep_pool *p, int64_t ns) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  t.tv_sec += (time_t)(ns / 1000000000);
  t.tv_nsec += (long)(ns % 1000000000);
  if (t.tv_nsec >= 1000000000) {
    t.tv_sec++;
    t.tv_nsec -= 1000000000;
  }
  pthread_mutex_lock(&p->mu);
  uint64_t turn = p->turn;
  /* Room may have come before the wait began. */
  while (p->turn == turn && p->bytes > TM_SNAPSHOT_ASIDE / 2 && !atomic_load(&p->over))
    if (pthread_cond_timedwait(&p->room, &p->mu, &t)) break;
  pthread_mutex_unlock(&p->mu);
}

void tm_keep_wait(tm_keep *k, int64_t *patience_ns) {
  int64_t start = tm_now_ns();
  if (*patience_ns > 0) pool_wait(k->pool, *patience_ns);
  *patience_ns -= tm_now_ns() - start;
  if (*patience_ns <= 0) pool_give_up(k->pool, TM_EABORTED);
}

size_t tm_keep_most(const tm_keep *k, int64_t rows) {
  size_t most = 0;
  for (; k; k = k->next) {
    int64_t n = rows < 0 || rows > k->nblock ? k->nblock : rows;
    most += (size_t)n * copy_size(k->block_bytes);
  }
  return most;
}

bool tm_keep_crowded(tm_keep *k, size_t most) {
  tm_keep_pool *p = k->pool;
  pthread_mutex_lock(&p->mu);
  size_t left = p->bytes < TM_SNAPSHOT_ASIDE ? TM_SNAPSHOT_ASIDE - p->bytes : 0;
  bool crowded = !atomic_load(&p->over) && most > left / SNAPSHOT_SHARE;
  pthread_mutex_unlock(&p->mu);
  return crowded;
}

/* --- taking --- */

/* The rows that changed, as they are counted now. */
static tm_status part_diff(snapshot_part *p, tm_err *err) {
  tm_keep *k = &p->keep;
  const tm_shard *sh = p->sh;
  size_t words = tm_shard_words(sh);
  const atomic_ullong *touched = atomic_load(&sh->touched);
  k->bits = tm_malloc(words * sizeof *k->bits);
  k->rank = tm_malloc(((size_t)k->nblock + 1) * sizeof *k->rank);
  if (!k->bits || !k->rank) return tm_nomem(err, "a snapshot");
  for (size_t i = 0; i < words; i++)
    k->bits[i] = atomic_load_explicit(&touched[i], memory_order_relaxed);
  int64_t n = 0;
  for (int64_t b = 0, row, end; b < k->nblock; b++) {
    k->rank[b] = n;
    for (keep_rows(k, b, &row, &end); row < end; row++) n += keep_has(k, row);
  }
  k->rank[k->nblock] = n;
  p->pub.diff = true;
  p->pub.shape.dim[0] = n;
  p->pub.bytes = k->bytes = (uint64_t)n * sh->row_bytes;
  return TM_OK;
}

static int keep_shift(const tm_shard *sh) {
  int shift = 0;
  while (shift < sh->shift && (sh->row_bytes << shift) < SNAPSHOT_BLOCK) shift++;
  return shift;
}

/* Is it known what changed since the base? */
static bool part_is_known(const snapshot_part *p) {
  return p->base && p->base == atomic_load(&p->sh->base) &&
         (!p->slot || p->slot->base == p->base);
}

static tm_status part_table(snapshot_part *p, tm_keep_pool *pool, int32_t i,
                            const tm_tensor *t, tm_err *err) {
  tm_shard *sh = p->sh;
  int shift = keep_shift(sh);
  size_t block = sh->row_bytes << shift;
  p->keep = (tm_keep){.pool = pool,
                      .sh = sh,
                      .shift = shift,
                      .part = i,
                      .data = t->v.data,
                      .bytes = (size_t)p->pub.bytes,
                      .block_bytes = block ? block : 1};
  p->keep.nblock =
      (int64_t)((p->keep.bytes + p->keep.block_bytes - 1) / p->keep.block_bytes);
  p->keep.kept = tm_calloc((size_t)p->keep.nblock + 1, sizeof *p->keep.kept);
  if (!p->keep.kept) return tm_nomem(err, "a snapshot");
  return part_is_known(p) && sh->row_bytes ? part_diff(p, err) : TM_OK;
}

/* The shard's mu is held, the store stands still. */
static tm_status part_note(snapshot_part *p, tm_keep_pool *pool, int32_t i,
                           const tm_snapshot_item *it, tm_err *err) {
  tm_shard *sh = p->sh;
  tm_tensor *t = sh->cur;
  p->values = it->slot[0] == '\0';
  if (!p->values) {
    tm_slot *k = tm_shard_slot(sh, it->optimizer, it->slot);
    if (!k) return TM_OK;
    t = k->t;
    p->slot = k;
  }
  p->mark = it->mark;
  p->base = it->base;
  p->pub = (tm_snapshot_part){true, false, sh->dtype, sh->shape,
                              (uint64_t)sh->rows * sh->row_bytes};
  if (p->mark && sh->shape.rank) TM_TRY(tm_shard_make_touched(sh, err));
  if (tm_shard_is_table(sh)) return part_table(p, pool, i, t, err);
  if (part_is_known(p)) { /* a dense change would have ended that */
    p->pub.diff = true;
    p->pub.shape.dim[0] = 0;
    p->pub.bytes = 0;
    return TM_OK;
  }
  p->t = tm_tensor_ref(t);
  if (p->values) atomic_store(&sh->snap, t);
  return TM_OK;
}

static tm_status snapshot_note(tm_snapshot *sn, const tm_snapshot_item *it, int32_t i,
                               tm_err *err) {
  snapshot_part *p = &sn->part[i];
  tm_shard_lock(p->sh);
  tm_status s = part_note(p, &sn->pool, i, it, err);
  tm_shard_unlock(p->sh);
  return s;
}

static tm_status snapshot_find(tm_snapshot *sn, const tm_snapshot_item *it,
                               tm_err *err) {
  for (int32_t i = 0; i < sn->n; i++) {
    sn->part[i].sh = tm_store_shard(sn->store, it[i].uid, it[i].shard);
    if (!sn->part[i].sh)
      return tm_fail(err, TM_ENOTFOUND,
                     "variable %" PRIx64
                     " (shard %u) is not here: it was dropped, or this ps was started "
                     "anew",
                     it[i].uid, (unsigned)it[i].shard);
  }
  return TM_OK;
}

static void part_mark(snapshot_part *p) {
  if (p->slot)
    p->slot->base = p->mark;
  else
    tm_shard_mark(p->sh, p->mark);
}

/* All tables at once, once nothing can fail any more. */
static void snapshot_hang(tm_snapshot *sn) {
  for (int32_t i = 0; i < sn->n; i++) {
    tm_keep *k = &sn->part[i].keep;
    if (sn->part[i].mark) part_mark(&sn->part[i]);
    if (!k->kept) continue;
    k->next = atomic_load(&k->sh->keep);
    atomic_store(&k->sh->keep, k);
  }
  sn->hung = true;
  tm_store_keep(sn->store, true);
}

tm_status tm_snapshot_take(tm_store *st, const tm_snapshot_item *it, int32_t n,
                           tm_snapshot **out, tm_err *err) {
  return tm_snapshot_take_tokens(st, it, n, NULL, out, err);
}

tm_status tm_snapshot_take_tokens(tm_store *st, const tm_snapshot_item *it, int32_t n,
                                  tm_token_list *q, tm_snapshot **out, tm_err *err) {
  *out = NULL;
  if (n < 0 || n > TM_SNAPSHOT_MAX_ITEMS)
    return tm_fail(err, TM_EINVAL, "a snapshot of %d arrays: at most %d", n,
                   (int)TM_SNAPSHOT_MAX_ITEMS);
  tm_snapshot *sn = tm_calloc(1, snapshot_size(n));
  if (!sn) return tm_nomem(err, "a snapshot");
  if (!tm_store_claim(st)) {
    tm_free(sn, snapshot_size(n));
    return tm_fail(err, TM_EEXISTS, "another checkpoint is being saved from here");
  }
  sn->store = st;
  sn->n = n;
  pthread_mutex_init(&sn->pool.mu, NULL);
  pthread_cond_init(&sn->pool.room, NULL);
  tm_status s = snapshot_find(sn, it, err);
  tm_store_still(st);
  for (int32_t i = 0; i < n && s == TM_OK; i++) s = snapshot_note(sn, &it[i], i, err);
  if (s == TM_OK) snapshot_hang(sn);
  if (s == TM_OK) tm_store_look(st, q);
  tm_store_go(st);
  if (s) {
    if (err && !err->task[0]) memcpy(err->task, tm_store_task(st), sizeof err->task);
    tm_snapshot_free(sn);
    return s;
  }
  *out = sn;
  return TM_OK;
}

/* --- giving back --- */

static void part_drop(snapshot_part *p) {
  tm_tensor *mine = p->t;
  if (p->t && p->values) atomic_compare_exchange_strong(&p->sh->snap, &mine, NULL);
  tm_tensor_unref(p->t);
  p->t = NULL;
}

static void part_free(snapshot_part *p) {
  tm_keep *k = &p->keep;
  for (int64_t b = 0; k->kept && b < k->nblock; b++) {
    uint64_t word = k->kept[b];
    if (word && word != TM_KEEP_READ && (word & 3) != TM_KEEP_AWAY)
      copy_free((tm_keep_copy *)(uintptr_t)word);
  }
  if (k->kept) tm_free(k->kept, ((size_t)k->nblock + 1) * sizeof *k->kept);
  k->kept = NULL;
  if (k->bits) tm_free(k->bits, tm_shard_words(p->sh) * sizeof *k->bits);
  if (k->rank) tm_free(k->rank, ((size_t)k->nblock + 1) * sizeof *k->rank);
  part_drop(p);
  tm_shard_unref(p->sh);
}

void tm_snapshot_free(tm_snapshot *sn) {
  if (!sn) return;
  pool_give_up(&sn->pool, TM_ECANCELLED); /* who waits for room goes on */
  if (sn->hung) {
    tm_store_still(sn->store);
    for (int32_t i = 0; i < sn->n; i++)
      if (sn->part[i].keep.kept) atomic_store(&sn->part[i].sh->keep, NULL);
    tm_store_keep(sn->store, false);
    tm_store_go(sn->store);
  }
  for (int32_t i = 0; i < sn->n; i++) part_free(&sn->part[i]);
  tm_store_unclaim(sn->store);
  pthread_mutex_destroy(&sn->pool.mu);
  pthread_cond_destroy(&sn->pool.room);
  tm_free(sn, snapshot_size(sn->n));
}

int32_t tm_snapshot_count(const tm_snapshot *sn) { return sn->n; }

const tm_snapshot_part *tm_snapshot_part_at(const tm_snapshot *sn, int32_t i) {
  return &sn->part[i].pub;
}

tm_status tm_snapshot_status(tm_snapshot *sn, tm_err *err) {
  pthread_mutex_lock(&sn->pool.mu);
  tm_status s = sn->pool.status;
  pthread_mutex_unlock(&sn->pool.mu);
  if (s == TM_OK) return TM_OK;
  if (err && !err->task[0])
    memcpy(err->task, tm_store_task(sn->store), sizeof err->task);
  if (s == TM_ENOMEM) return tm_nomem(err, "rows that change while they are saved");
  return tm_fail(err, s,
                 "rows change faster than they can be saved: training waited %d s for "
                 "the disk and then gave the checkpoint up",
                 (int)(TM_SNAPSHOT_PATIENCE_NS / 1000000000));
}

/* --- reading --- */

size_t tm_snapshot_ids(const tm_snapshot *sn, int32_t i, int64_t from, int64_t *out,
                       size_t cap) {
  const tm_keep *k = &sn->part[i].keep;
  const tm_shape *s = &sn->part[i].pub.shape;
  int64_t all = s->rank ? s->dim[0] : 1, row, end;
  size_t n = 0;
  if (from < 0 || from >= all) return 0;
  if (!k->bits) {
    for (; from < all && n < cap; from++) out[n++] = from;
    return n;
  }
  int64_t block = keep_find_row(k, from), skip = from - k->rank[block];
  for (; block < k->nblock && n < cap; block++)
    for (keep_rows(k, block, &row, &end); row < end && n < cap; row++) {
      if (!keep_has(k, row)) continue;
      if (skip-- > 0) continue;
      out[n++] = row;
    }
  return n;
}

void tm_snapshot_drop(tm_snapshot *sn, int32_t i) { part_drop(&sn->part[i]); }

/* Bytes off.. of a copied block; the copy goes with its last byte (stripe held). */
static void keep_take_copy(tm_keep *k, int64_t block, size_t off, void *to, size_t n) {
  tm_keep_copy *c = (tm_keep_copy *)(uintptr_t)k->kept[block];
  memcpy(to, c->data + off, n);
  pthread_mutex_lock(&k->pool->mu);
  if (c->listed) {
    pool_unlist(k->pool, c);
    k->pool->bytes -= copy_size(c->n);
    k->pool->turn++;
    pthread_cond_broadcast(&k->pool->room);
  }
  pthread_mutex_unlock(&k->pool->mu);
  if (off + n < c->n) return;
  k->kept[block] = TM_KEEP_READ;
  copy_free(c);
}

/* Bytes off..off+n of a block to `to` (stripe held).  False: its copy was put away. */
static bool keep_take(tm_keep *k, int64_t block, size_t off, void *to, size_t n) {
  size_t size = keep_size(k, block);
  if (k->kept[block] == 0 && n < size) {
    tm_keep_copy *c = copy_new(k, block, size); /* it is read in pieces */
    if (c) k->kept[block] = (uint64_t)(uintptr_t)c;
  }
  if (k->kept[block] == 0) {
    if (n == size)
      keep_copy_bytes(k, block, to);
    else
      pool_give_up(k->pool, TM_ENOMEM);
    k->kept[block] = TM_KEEP_READ;
  } else if ((k->kept[block] & 3) == TM_KEEP_AWAY) {
    return false;
  } else if (k->kept[block] == TM_KEEP_READ) {
    memset(to, 0, n); /* out of memory, see above: the snapshot is given up */
  } else {
    keep_take_copy(k, block, off, to, n);
  }
  return true;
}

/* One more block of the piece (stripe held); false: it belongs to the next piece. */
static bool keep_add(tm_keep *k, int64_t block, size_t off, unsigned char *room,
                     size_t cap, tm_snapshot_piece *out) {
  size_t size = keep_size(k, block) - off, n = size < cap ? size : cap;
  bool away = (k->kept[block] & 3) == TM_KEEP_AWAY && off == 0;
  if (out->n > 0 && (n > cap - out->n || away != (out->p == NULL))) return false;
  if (away) {
    uint32_t crc = (uint32_t)(k->kept[block] >> 32);
    out->crc = out->n ? tm_crc32c_join(out->crc, crc, size) : crc;
    out->p = NULL;
    n = size;
  } else if (n > 0 && !keep_take(k, block, off, room + out->n, n)) {
    return false;
  }
  out->n += n;
  return n == size;
}

/* Blocks that share a stripe are taken together. */
static void table_next(tm_keep *k, uint64_t at, unsigned char *room, size_t cap,
                       tm_snapshot_piece *out) {
  int64_t block = keep_find(k, at);
  size_t off = (size_t)(at - keep_at(k, block));
  int group = k->sh->shift - k->shift;
  bool more = true;
  *out = (tm_snapshot_piece){room, 0, 0};
  while (more && block < k->nblock) {
    int64_t end = ((block >> group) + 1) << group;
    tm_stripe *st = keep_stripe(k, block);
    tm_stripe_lock(st);
    for (; more && block < end && block < k->nblock; off = 0) {
      more = keep_add(k, block, off, room, cap, out);
      block += more;
    }
    tm_stripe_unlock(st);
  }
}

void tm_snapshot_next(tm_snapshot *sn, int32_t i, uint64_t at, void *room, size_t cap,
                      tm_snapshot_piece *out) {
  snapshot_part *p = &sn->part[i];
  uint64_t left = p->pub.bytes - at;
  if (p->keep.kept) {
    table_next(&p->keep, at, room, cap, out);
    return;
  }
  TM_DCHECK(p->t);
  *out = (tm_snapshot_piece){(const unsigned char *)p->t->v.data + at,
                             left < cap ? (size_t)left : cap, 0};
}

/* --- putting copies away --- */

bool tm_snapshot_take_aside(tm_snapshot *sn, tm_snapshot_aside *out) {
  tm_keep_pool *p = &sn->pool;
  pthread_mutex_lock(&p->mu);
  tm_keep_copy *c = p->bytes > TM_SNAPSHOT_ASIDE / 2 ? p->head : NULL;
  if (c) pool_unlist(p, c);
  pthread_mutex_unlock(&p->mu);
  if (!c) return false;
  *out =
      (tm_snapshot_aside){c->keep->part, keep_at(c->keep, c->block), c->data, c->n, c};
  return true;
}

void tm_snapshot_give_aside(tm_snapshot *sn, const tm_snapshot_aside *a, uint32_t crc) {
  tm_keep_copy *c = a->block;
  tm_stripe *st = keep_stripe(c->keep, c->block);
  tm_stripe_lock(st);
  c->keep->kept[c->block] = (uint64_t)crc << 32 | TM_KEEP_AWAY;
  tm_stripe_unlock(st);
  pool_release(&sn->pool, copy_size(c->n));
  copy_free(c);
}
