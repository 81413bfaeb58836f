#include "ps/rounds.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "kernel/elementwise.h"

/*
 * Design.  A share has a list of items, one an UPDATE of a shard.  The mean is made in
 * groups: UPDATEs of one shard that are of one kind (and optimizer), in the order in
 * which the first of each comes.
 *
 * Invariants:
 *   (1) Every share is of a round above `last`; under mu.
 *   (2) An item is in its share once, whoever sends it again: (turn, variable, shard,
 *       kind, optimizer) tells items apart, because a function applies a rule to a
 *       shard once.
 *   (3) Who ends a round holds `ending`; only that one takes shares away, so it may
 *       read items without mu.
 *   (4) A group's dense memory is that of its first item.
 */
typedef struct rounds_item {
  struct rounds_item *next;
  tm_ps_update up;
  uint32_t turn;
  size_t size; /* of data */
  void *data;  /* value, then ids */
  char rule[24];
} rounds_item;

typedef struct rounds_share {
  tm_ps_token token; /* of the first item */
  rounds_item *first, **last;
} rounds_share;

struct tm_rounds {
  pthread_mutex_t mu, ending;
  uint64_t last; /* round that ended */
  tm_map *share;
  uint64_t bytes;
};

tm_status tm_rounds_new(tm_rounds **out) {
  tm_rounds *r = *out = tm_calloc(1, sizeof *r);
  if (!r) return TM_ENOMEM;
  if (tm_map_new(&r->share)) {
    tm_free(r, sizeof *r);
    *out = NULL;
    return TM_ENOMEM;
  }
  pthread_mutex_init(&r->mu, NULL);
  pthread_mutex_init(&r->ending, NULL);
  return TM_OK;
}

static void rounds_item_free(rounds_item *it) {
  if (!it) return;
  tm_free_aligned(it->data, it->size);
  tm_free(it, sizeof *it);
}

static void rounds_list_free(rounds_item *it) {
  for (rounds_item *next; it; it = next) {
    next = it->next;
    rounds_item_free(it);
  }
}

static uint64_t rounds_share_free(rounds_share *s) {
  uint64_t bytes = 0;
  for (rounds_item *it = s->first; it; it = it->next) bytes += it->size;
  rounds_list_free(s->first);
  tm_free(s, sizeof *s);
  return bytes;
}

/* Shares of rounds up to this one; mu held, or nobody else is there. */
static void rounds_drop(tm_rounds *r, uint64_t round) {
  size_t pos = 0;
  uint64_t key;
  void *p;
  while (tm_map_next(r->share, &pos, &key, NULL, NULL, &p)) {
    rounds_share *s = p;
    if (s->token.round > round) continue;
    tm_map_del(r->share, key);
    r->bytes -= rounds_share_free(s);
    pos = 0; /* the map changed */
  }
}

void tm_rounds_free(tm_rounds *r) {
  if (!r) return;
  rounds_drop(r, UINT64_MAX);
  tm_map_free(r->share);
  pthread_mutex_destroy(&r->mu);
  pthread_mutex_destroy(&r->ending);
  tm_free(r, sizeof *r);
}

/* --- keeping --- */

static size_t rounds_pad(size_t n) { return (n + 63) & ~(size_t)63; }

static rounds_item *rounds_copy(const tm_ps_update *up, uint32_t turn) {
  size_t value = tm_view_bytes(&up->value),
         ids = up->ids.data ? tm_view_bytes(&up->ids) : 0;
  rounds_item *it = tm_calloc(1, sizeof *it);
  if (!it) return NULL;
  it->size = rounds_pad(value) + ids + 64; /* an address also for no bytes */
  it->data = tm_malloc_aligned(it->size);
  if (!it->data) {
    tm_free(it, sizeof *it);
    return NULL;
  }
  it->up = *up;
  it->turn = turn;
  strncpy(it->rule, up->rule ? up->rule : "", sizeof it->rule - 1);
  it->up.rule = it->rule;
  it->up.value.data = it->data;
  if (value) memcpy(it->data, up->value.data, value);
  if (!up->ids.data) return it;
  it->up.ids.data = (char *)it->data + rounds_pad(value);
  if (ids) memcpy(it->up.ids.data, up->ids.data, ids);
  return it;
}

/* Copies of those that wait. */
static tm_status rounds_copies(const tm_ps_token *token, const tm_ps_update *up,
                               int32_t n, rounds_item **out, tm_err *err) {
  rounds_item **at = out;
  *out = NULL;
  for (int32_t i = 0; i < n; i++) {
    if (!tm_ps_waits(&up[i])) continue;
    *at = rounds_copy(&up[i], token->turn);
    if (!*at) {
      rounds_list_free(*out);
      *out = NULL;
      return tm_nomem(err, "what waits for the end of a round");
    }
    at = &(*at)->next;
  }
  return TM_OK;
}

static bool rounds_same(const tm_ps_update *a, const tm_ps_update *b) {
  return a->uid == b->uid && a->shard == b->shard && a->kind == b->kind &&
         a->optimizer == b->optimizer;
}

static bool rounds_has(const rounds_share *s, const rounds_item *it) {
  for (const rounds_item *k = s->first; k; k = k->next)
    if (k->turn == it->turn && rounds_same(&k->up, &it->up)) return true;
  return false;
}

/* Something of this turn came before. */
static bool rounds_met(const rounds_share *s, uint32_t turn) {
  const rounds_item *k = s->first;
  while (k && k->turn != turn) k = k->next;
  return k != NULL;
}

/* The share of a token, made when it is new (mu held). */
static tm_status rounds_share_of(tm_rounds *r, const tm_ps_token *token,
                                 rounds_share **out, tm_err *err) {
  rounds_share *s = *out = tm_map_get(r->share, token->share);
  if (s) return TM_OK;
  if (tm_map_count(r->share) >= TM_ROUNDS_MAX)
    return tm_fail(err, TM_EEXHAUSTED, "%d shares of a round wait on this ps",
                   (int)TM_ROUNDS_MAX);
  s = tm_calloc(1, sizeof *s);
  if (!s || tm_map_put(r->share, token->share, s)) {
    tm_free(s, sizeof *s);
    return tm_nomem(err, "a share of a round");
  }
  s->token = *token;
  s->last = &s->first;
  *out = s;
  return TM_OK;
}

/* mu held; takes from *list what it keeps. */
static tm_status rounds_insert(tm_rounds *r, const tm_ps_token *token,
                               rounds_item **list, tm_err *err) {
  rounds_share *s;
  if (token->round <= r->last) return TM_OK; /* too late: it is passed over */
  TM_TRY(rounds_share_of(r, token, &s, err));
  bool met = rounds_met(s, token->turn);
  while (*list) {
    rounds_item *it = *list;
    if (met && rounds_has(s, it)) {
      list = &it->next;
      continue;
    }
    *list = it->next;
    it->next = NULL;
    *s->last = it;
    s->last = &it->next;
    r->bytes += it->size;
  }
  return TM_OK;
}

tm_status tm_rounds_keep(tm_rounds *r, const tm_ps_token *token, const tm_ps_update *up,
                         int32_t n, tm_err *err) {
  rounds_item *list;
  TM_TRY(rounds_copies(token, up, n, &list, err));
  if (!list) return TM_OK;
  pthread_mutex_lock(&r->mu);
  tm_status s = rounds_insert(r, token, &list, err);
  pthread_mutex_unlock(&r->mu);
  rounds_list_free(list);
  return s;
}

/* --- the mean --- */

typedef struct rounds_group {
  struct rounds_group *next; /* of the same variable */
  int32_t at;                /* in the list of means */
  int32_t n;                 /* shares that have it */
  /* By rows: */
  tm_map *row;      /* id + 1 -> place + 1 */
  int64_t rows;     /* places in use */
  int32_t *has;     /* of each row: shares that have it */
  int64_t max_rows; /* room */
} rounds_group;

static tm_k_type rounds_type(const tm_view *v) {
  return (tm_k_type)(v->dtype - TM_F32);
}

static void rounds_add(void *to, const void *x, const tm_view *like, size_t n) {
  tm_k_add[rounds_type(like)](to, to, x, n, TM_K_VV);
}

/* x /= by */
static void rounds_divide(const tm_view *like, void *x, size_t n, int32_t by) {
  if (by <= 1 || n == 0) return;
  union {
    float f32;
    double f64;
    int32_t i32;
    int64_t i64;
    uint8_t u8;
  } d;
  tm_k_type t = rounds_type(like);
  if (t == TM_K_F32) d.f32 = (float)by;
  if (t == TM_K_F64) d.f64 = by;
  if (t == TM_K_I32) d.i32 = by;
  if (t == TM_K_I64) d.i64 = by;
  if (t == TM_K_U8) d.u8 = (uint8_t)(by > UINT8_MAX ? UINT8_MAX : by);
  bool whole = t != TM_K_F32 && t != TM_K_F64;
  (whole ? tm_k_floordiv[t] : tm_k_div[t])(x, x, &d, n, TM_K_VS);
}

static size_t rounds_width(const tm_view *v) {
  size_t n = 1;
  for (int32_t i = 1; i < v->shape.rank; i++) n *= (size_t)v->shape.dim[i];
  return n;
}

static void *rounds_block(tm_rounds_means *m, size_t bytes) {
  if (m->nblock == m->max_block) {
    int32_t max = m->max_block ? 2 * m->max_block : 8;
    struct tm_rounds_block *block = tm_realloc(
        m->block, (size_t)m->max_block * sizeof *block, (size_t)max * sizeof *block);
    if (!block) return NULL;
    m->block = block;
    m->max_block = max;
  }
  void *p = tm_malloc_aligned(bytes);
  if (p) m->block[m->nblock++] = (struct tm_rounds_block){p, bytes};
  return p;
}

typedef struct rounds_sum {
  const tm_ps_commit *c;
  tm_rounds_means *m;
  tm_map *group; /* by variable */
} rounds_sum;

static rounds_group *rounds_group_of(const rounds_sum *s, const tm_ps_update *up) {
  rounds_group *g = tm_map_get(s->group, up->uid);
  while (g && !rounds_same(&s->m->up[g->at], up)) g = g->next;
  return g;
}

/* Without its elements. */
static tm_status rounds_group_new(rounds_sum *s, const tm_ps_update *up,
                                  rounds_group **out) {
  tm_rounds_means *m = s->m;
  if (m->n == m->max) {
    int32_t max = m->max ? 2 * m->max : 64;
    tm_ps_update *a =
        tm_realloc(m->up, (size_t)m->max * sizeof *a, (size_t)max * sizeof *a);
    if (!a) return TM_ENOMEM;
    m->up = a;
    m->max = max;
  }
  rounds_group *g = *out = tm_calloc(1, sizeof *g);
  if (!g) return TM_ENOMEM;
  g->next = tm_map_get(s->group, up->uid);
  g->at = m->n;
  if (tm_map_put(s->group, up->uid, g)) {
    tm_free(g, sizeof *g);
    return TM_ENOMEM;
  }
  m->up[m->n++] = *up;
  return TM_OK;
}

/* A place in the sum for row `id`. */
static tm_status rounds_row(rounds_group *g, tm_ps_update *mean, int64_t id,
                            size_t bytes, int64_t *at) {
  uintptr_t k = (uintptr_t)tm_map_get(g->row, (uint64_t)id + 1);
  if (k) {
    *at = (int64_t)k - 1;
    return TM_OK;
  }
  *at = g->rows;
  if (tm_map_put(g->row, (uint64_t)id + 1, (void *)(uintptr_t)(g->rows + 1)))
    return TM_ENOMEM;
  ((int64_t *)mean->ids.data)[g->rows++] = id;
  memset((char *)mean->value.data + (size_t)*at * bytes, 0, bytes);
  return TM_OK;
}

static tm_status rounds_add_rows(rounds_group *g, tm_ps_update *mean,
                                 const tm_ps_update *up) {
  size_t width = rounds_width(&up->value);
  size_t bytes = width * tm_dtype_size(up->value.dtype);
  const int64_t *id = up->ids.data;
  for (int64_t i = 0; i < up->ids.shape.dim[0]; i++) {
    int64_t at;
    TM_TRY(rounds_row(g, mean, id[i], bytes, &at));
    if (width == 0) continue;
    rounds_add((char *)mean->value.data + (size_t)at * bytes,
               (const char *)up->value.data + (size_t)i * bytes, &up->value, width);
    g->has[at]++;
  }
  return TM_OK;
}

/* Room for the rows of all shares of this group. */
static tm_status rounds_room(rounds_sum *s, rounds_group *g, int64_t rows) {
  tm_ps_update *mean = &s->m->up[g->at];
  size_t row = rounds_width(&mean->value) * tm_dtype_size(mean->value.dtype);
  g->max_rows = rows;
  mean->value.data = rounds_block(s->m, (size_t)rows * row + 64);
  mean->ids.data = rounds_block(s->m, (size_t)rows * sizeof(int64_t) + 64);
  g->has = tm_calloc((size_t)rows + 1, sizeof *g->has);
  if (!mean->value.data || !mean->ids.data || !g->has) return TM_ENOMEM;
  return tm_map_new(&g->row);
}

static tm_status rounds_take(rounds_sum *s, const rounds_item *it, int64_t rows) {
  rounds_group *g = rounds_group_of(s, &it->up);
  bool first = !g, by_rows = tm_ps_is_rows(it->up.kind);
  if (first) TM_TRY(rounds_group_new(s, &it->up, &g));
  g->n++;
  if (first && by_rows) TM_TRY(rounds_room(s, g, rows));
  tm_ps_update *mean = &s->m->up[g->at];
  if (by_rows) return rounds_add_rows(g, mean, &it->up);
  if (!first)
    rounds_add(mean->value.data, it->up.value.data, &it->up.value,
               (size_t)tm_view_count(&it->up.value));
  return TM_OK;
}

/* How many rows the shares have of what `up` changes. */
static int64_t rounds_count(tm_rounds *r, const tm_ps_commit *c,
                            const tm_ps_update *up) {
  int64_t n = 0;
  for (int32_t i = 0; i < c->n; i++) {
    const rounds_share *s = tm_map_get(r->share, c->share[i]);
    for (const rounds_item *it = s ? s->first : NULL; it; it = it->next)
      if (rounds_same(&it->up, up)) n += it->up.ids.shape.dim[0];
  }
  return n;
}

static void rounds_finish(const rounds_sum *s, rounds_group *g) {
  tm_ps_update *mean = &s->m->up[g->at];
  if (!tm_ps_is_rows(mean->kind)) {
    rounds_divide(&mean->value, mean->value.data, (size_t)tm_view_count(&mean->value),
                  mean->once ? g->n : s->c->n);
    return;
  }
  size_t width = rounds_width(&mean->value);
  size_t bytes = width * tm_dtype_size(mean->value.dtype);
  mean->ids.shape.dim[0] = mean->value.shape.dim[0] = g->rows;
  if (!mean->once)
    rounds_divide(&mean->value, mean->value.data, (size_t)g->rows * width, s->c->n);
  for (int64_t i = 0; mean->once && i < g->rows; i++)
    rounds_divide(&mean->value, (char *)mean->value.data + (size_t)i * bytes, width,
                  g->has[i]);
}

static void rounds_groups_end(rounds_sum *s, bool finish) {
  size_t pos = 0;
  void *p;
  while (s->group && tm_map_next(s->group, &pos, NULL, NULL, NULL, &p))
    for (rounds_group *g = p, *next; g; g = next) {
      next = g->next;
      if (finish) rounds_finish(s, g);
      tm_map_free(g->row);
      tm_free(g->has, ((size_t)g->max_rows + 1) * sizeof *g->has);
      tm_free(g, sizeof *g);
    }
  tm_map_free(s->group);
}

bool tm_rounds_begin(tm_rounds *r, const tm_ps_commit *c) {
  pthread_mutex_lock(&r->ending);
  pthread_mutex_lock(&r->mu);
  bool open = c->round > r->last;
  pthread_mutex_unlock(&r->mu);
  if (!open) pthread_mutex_unlock(&r->ending);
  return open;
}

tm_status tm_rounds_mean(tm_rounds *r, const tm_ps_commit *c, tm_rounds_means *out,
                         tm_err *err) {
  rounds_sum s = {.c = c, .m = out};
  memset(out, 0, sizeof *out);
  tm_status st = tm_map_new(&s.group);
  pthread_mutex_lock(&r->mu);
  for (int32_t i = 0; i < c->n && st == TM_OK; i++) {
    const rounds_share *share = tm_map_get(r->share, c->share[i]);
    for (const rounds_item *it = share ? share->first : NULL; it && st == TM_OK;
         it = it->next) {
      bool first = tm_ps_is_rows(it->up.kind) && !rounds_group_of(&s, &it->up);
      st = rounds_take(&s, it, first ? rounds_count(r, c, &it->up) : 0);
    }
  }
  pthread_mutex_unlock(&r->mu);
  rounds_groups_end(&s, st == TM_OK);
  return st ? tm_nomem(err, "the mean of a round") : TM_OK;
}

void tm_rounds_end(tm_rounds *r, const tm_ps_commit *c, tm_rounds_means *m) {
  for (int32_t i = 0; i < m->nblock; i++)
    tm_free_aligned(m->block[i].p, m->block[i].size);
  tm_free(m->block, (size_t)m->max_block * sizeof *m->block);
  tm_free(m->up, (size_t)m->max * sizeof *m->up);
  memset(m, 0, sizeof *m);
  pthread_mutex_lock(&r->mu);
  r->last = c->round;
  rounds_drop(r, c->round);
  pthread_mutex_unlock(&r->mu);
  pthread_mutex_unlock(&r->ending);
}

void tm_rounds_forget(tm_rounds *r) {
  pthread_mutex_lock(&r->mu);
  rounds_drop(r, UINT64_MAX);
  r->last = 0;
  pthread_mutex_unlock(&r->mu);
}

/* --- copies --- */

uint64_t tm_rounds_last(tm_rounds *r) {
  pthread_mutex_lock(&r->mu);
  uint64_t last = r->last;
  pthread_mutex_unlock(&r->mu);
  return last;
}

void tm_rounds_set_last(tm_rounds *r, uint64_t round) {
  pthread_mutex_lock(&r->mu);
  r->last = round;
  rounds_drop(r, round);
  pthread_mutex_unlock(&r->mu);
}

tm_status tm_rounds_of_shard(tm_rounds *r, uint64_t uid, uint32_t shard,
                             tm_rounds_each fn, void *ud, tm_err *err) {
  size_t pos = 0;
  void *p;
  tm_status st = TM_OK;
  pthread_mutex_lock(&r->mu);
  while (st == TM_OK && tm_map_next(r->share, &pos, NULL, NULL, NULL, &p)) {
    const rounds_share *s = p;
    for (const rounds_item *it = s->first; it && st == TM_OK; it = it->next) {
      if (it->up.uid != uid || it->up.shard != shard) continue;
      tm_ps_token token = s->token;
      token.turn = it->turn;
      st = fn(ud, &token, &it->up, err);
    }
  }
  pthread_mutex_unlock(&r->mu);
  return st;
}

uint64_t tm_rounds_bytes(tm_rounds *r) {
  pthread_mutex_lock(&r->mu);
  uint64_t bytes = r->bytes;
  pthread_mutex_unlock(&r->mu);
  return bytes;
}
