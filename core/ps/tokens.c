#include "ps/tokens.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"

/*
 * Design.  `seen` maps a closure to the number of turns it is known to have sent
 * (highest turn + 1), kept in the pointer itself.  Refused incarnations are a ring: the
 * oldest goes when 1024 newer ones came.  Clients are a list in order of their last
 * UPDATE: the one that was quiet longest goes.
 *
 * Invariants (under mu):
 *   (1) Every closure in seen is >= lowest; values are > 0.  An UPDATE of one below is
 *       late: its closure has ended elsewhere.  So a lost incarnation whose refusal was
 *       forgotten meanwhile still changes nothing twice.
 *   (2) `uses` are the tokens between take and end, of different closures and clients.
 */
typedef struct tokens_client {
  uint64_t id, last;
} tokens_client;

struct tm_tokens {
  pthread_mutex_t mu;
  pthread_cond_t ended;
  tm_map *seen;
  tm_token_use *uses;
  tokens_client client[TM_CLIENTS_MAX]; /* the latest first */
  uint32_t nclient;
  uint64_t lowest;
  uint64_t refused[TM_REFUSED_MAX];
  uint32_t nrefused, next;
};

tm_status tm_tokens_new(tm_tokens **out) {
  *out = NULL;
  tm_tokens *t = tm_calloc(1, sizeof *t);
  if (!t) return TM_ENOMEM;
  if (tm_map_new(&t->seen)) {
    tm_free(t, sizeof *t);
    return TM_ENOMEM;
  }
  pthread_mutex_init(&t->mu, NULL);
  pthread_cond_init(&t->ended, NULL);
  *out = t;
  return TM_OK;
}

void tm_tokens_free(tm_tokens *t) {
  if (!t) return;
  pthread_mutex_destroy(&t->mu);
  pthread_cond_destroy(&t->ended);
  tm_map_free(t->seen);
  tm_free(t, sizeof *t);
}

static bool tokens_refused(const tm_tokens *t, uint64_t incarnation) {
  for (uint32_t i = 0; i < t->nrefused; i++)
    if (t->refused[i] == incarnation) return true;
  return false;
}

/* Drop one closure below `lowest`; false when there is none. */
static bool tokens_drop_one(tm_tokens *t) {
  size_t pos = 0;
  uint64_t closure;
  while (tm_map_next(t->seen, &pos, &closure, NULL, NULL, NULL))
    if (closure < t->lowest) {
      tm_map_del(t->seen, closure);
      return true;
    }
  return false;
}

/* Go on with a map of those that stay; false: no memory for it. */
static bool tokens_sift(tm_tokens *t) {
  tm_map *keep;
  size_t pos = 0;
  uint64_t closure;
  void *turns;
  if (tm_map_new(&keep)) return false;
  while (tm_map_next(t->seen, &pos, &closure, NULL, NULL, &turns))
    if (closure >= t->lowest && tm_map_put(keep, closure, turns)) {
      tm_map_free(keep);
      return false;
    }
  tm_map_free(t->seen);
  t->seen = keep;
  return true;
}

static void tokens_advance(tm_tokens *t, uint64_t lowest) {
  if (lowest <= t->lowest) return;
  uint64_t from = t->lowest;
  t->lowest = lowest;
  if (lowest - from > tm_map_count(t->seen)) {
    if (tokens_sift(t)) return;
    while (tokens_drop_one(t)) continue; /* slow, but needs no memory */
    return;
  }
  for (uint64_t c = from; c < lowest; c++) tm_map_del(t->seen, c);
}

/* The client's entry, put first; made when it has none. */
static tokens_client *tokens_client_of(tm_tokens *t, uint64_t id) {
  uint32_t i = 0;
  while (i < t->nclient && t->client[i].id != id) i++;
  tokens_client c = {id, 0};
  if (i < t->nclient)
    c = t->client[i];
  else if (t->nclient < TM_CLIENTS_MAX)
    t->nclient++;
  else
    i--;
  memmove(t->client + 1, t->client, i * sizeof *t->client);
  t->client[0] = c;
  return &t->client[0];
}

static tm_status tokens_take_number(tm_tokens *t, tm_token_use *use) {
  tokens_client *c = tokens_client_of(t, use->token.incarnation);
  use->before = c->last;
  use->repeat = use->token.lowest <= c->last;
  if (!use->repeat) c->last = use->token.lowest;
  return TM_OK;
}

static tm_status tokens_take_turn(tm_tokens *t, tm_token_use *use, tm_err *err) {
  const tm_ps_token *token = &use->token;
  tokens_advance(t, token->lowest);
  if (token->closure < t->lowest)
    return tm_fail(err, TM_EABORTED,
                   "closure %" PRIu64
                   " is finished (the lowest unfinished one is "
                   "%" PRIu64 "); its updates are refused",
                   token->closure, t->lowest);
  use->before = (uint64_t)(uintptr_t)tm_map_get(t->seen, token->closure);
  use->repeat = use->before > token->turn;
  if (use->repeat) return TM_OK;
  if (use->before == 0 && tm_map_count(t->seen) >= TM_TOKENS_MAX)
    return tm_fail(err, TM_EEXHAUSTED, "%d closures are unfinished on this ps",
                   (int)TM_TOKENS_MAX);
  void *turns = (void *)(uintptr_t)((uint64_t)token->turn + 1);
  if (tm_map_put(t->seen, token->closure, turns)) return tm_nomem(err, "a token");
  return TM_OK;
}

static bool tokens_same(const tm_ps_token *a, const tm_ps_token *b) {
  return a->closure == b->closure &&
         (a->closure != 0 || a->incarnation == b->incarnation);
}

static bool tokens_in_use(const tm_tokens *t, const tm_ps_token *token) {
  const tm_token_use *u = t->uses;
  while (u && !tokens_same(&u->token, token)) u = u->next;
  return u != NULL;
}

static tm_status tokens_take(tm_tokens *t, tm_token_use *use, tm_err *err) {
  while (tokens_in_use(t, &use->token)) pthread_cond_wait(&t->ended, &t->mu);
  if (tokens_refused(t, use->token.incarnation))
    return tm_fail(err, TM_EABORTED,
                   "this task (incarnation %" PRIx64
                   ") was declared lost; its updates are refused",
                   use->token.incarnation);
  TM_TRY(use->token.closure ? tokens_take_turn(t, use, err)
                            : tokens_take_number(t, use));
  if (use->repeat) return TM_OK;
  use->next = t->uses;
  t->uses = use;
  return TM_OK;
}

/* Nobody's: calls within one process, which are not sent again. */
static bool tokens_none(const tm_ps_token *token) {
  return token->closure == 0 && token->lowest == 0;
}

tm_status tm_tokens_take(tm_tokens *t, const tm_ps_token *token, tm_token_use *use,
                         tm_err *err) {
  *use = (tm_token_use){.token = *token};
  if (tokens_none(token)) return TM_OK;
  pthread_mutex_lock(&t->mu);
  tm_status s = tokens_take(t, use, err);
  pthread_mutex_unlock(&t->mu);
  return s;
}

static void tokens_undo(tm_tokens *t, const tm_token_use *use) {
  uint64_t closure = use->token.closure;
  if (closure == 0) {
    tokens_client_of(t, use->token.incarnation)->last = use->before;
  } else if (use->before == 0) {
    tm_map_del(t->seen, closure);
  } else if (tm_map_get(t->seen, closure) &&
             tm_map_put(t->seen, closure, (void *)(uintptr_t)use->before)) {
    tm_map_del(t->seen, closure); /* replacing a value in place does not fail */
  }
}

void tm_tokens_end(tm_tokens *t, tm_token_use *use, bool applied) {
  if (use->repeat || tokens_none(&use->token)) return;
  pthread_mutex_lock(&t->mu);
  tm_token_use **at = &t->uses;
  while (*at != use) at = &(*at)->next;
  *at = use->next;
  if (!applied) tokens_undo(t, use);
  pthread_cond_broadcast(&t->ended);
  pthread_mutex_unlock(&t->mu);
}

void tm_tokens_refuse(tm_tokens *t, uint64_t incarnation) {
  pthread_mutex_lock(&t->mu);
  if (!tokens_refused(t, incarnation)) {
    t->refused[t->next] = incarnation;
    t->next = (t->next + 1) % TM_REFUSED_MAX;
    if (t->nrefused < TM_REFUSED_MAX) t->nrefused++;
  }
  pthread_mutex_unlock(&t->mu);
}

void tm_tokens_forget(tm_tokens *t) {
  pthread_mutex_lock(&t->mu);
  t->lowest = UINT64_MAX;
  while (tokens_drop_one(t)) continue;
  t->lowest = 0;
  pthread_mutex_unlock(&t->mu);
}

/* --- of a checkpoint --- */

void tm_tokens_look(tm_tokens *t, const uint64_t *closure, int32_t n, uint64_t *turns) {
  pthread_mutex_lock(&t->mu);
  for (int32_t i = 0; i < n; i++)
    turns[i] = (uint64_t)(uintptr_t)tm_map_get(t->seen, closure[i]);
  pthread_mutex_unlock(&t->mu);
}

/* mu held. */
static tm_status tokens_add(tm_tokens *t, uint64_t closure, uint64_t turns,
                            tm_err *err) {
  if (closure < t->lowest || (uint64_t)(uintptr_t)tm_map_get(t->seen, closure) >= turns)
    return TM_OK;
  if (tm_map_count(t->seen) >= TM_TOKENS_MAX)
    return tm_fail(err, TM_EEXHAUSTED, "%d closures are unfinished on this ps",
                   (int)TM_TOKENS_MAX);
  void *p = (void *)(uintptr_t)turns;
  return tm_map_put(t->seen, closure, p) ? tm_nomem(err, "a token") : TM_OK;
}

tm_status tm_tokens_add(tm_tokens *t, const uint64_t *closure, const uint64_t *turns,
                        int32_t n, tm_err *err) {
  tm_status s = TM_OK;
  pthread_mutex_lock(&t->mu);
  for (int32_t i = 0; i < n && s == TM_OK; i++)
    s = tokens_add(t, closure[i], turns[i], err);
  pthread_mutex_unlock(&t->mu);
  return s;
}

/* --- to another ps --- */

void tm_tokens_pack(tm_tokens *t, tm_packer *w) {
  size_t pos = 0;
  uint64_t closure;
  void *turns;
  pthread_mutex_lock(&t->mu);
  tm_pack_array(w, 4);
  tm_pack_uint(w, t->lowest);
  tm_pack_array(w, (uint32_t)tm_map_count(t->seen) * 2);
  while (tm_map_next(t->seen, &pos, &closure, NULL, NULL, &turns)) {
    tm_pack_uint(w, closure);
    tm_pack_uint(w, (uint64_t)(uintptr_t)turns);
  }
  tm_pack_array(w, t->nrefused);
  uint32_t oldest = t->next + TM_REFUSED_MAX - t->nrefused;
  for (uint32_t i = 0; i < t->nrefused; i++)
    tm_pack_uint(w, t->refused[(oldest + i) % TM_REFUSED_MAX]);
  tm_pack_array(w, t->nclient * 2);
  for (uint32_t i = 0; i < t->nclient; i++) {
    tm_pack_uint(w, t->client[i].id);
    tm_pack_uint(w, t->client[i].last);
  }
  pthread_mutex_unlock(&t->mu);
}

static void tokens_unpack_seen(tm_tokens *t, tm_unpacker *r) {
  uint32_t n = tm_unpack_array(r, 0, TM_TOKENS_MAX * 2);
  if (n % 2) tm_unpack_fail(r, "has half a token");
  for (uint32_t i = 0; i < n / 2 && r->status == TM_OK; i++) {
    uint64_t closure = tm_unpack_uint(r);
    uint64_t turns = (uint64_t)tm_unpack_range(r, 1, (int64_t)UINT32_MAX + 1);
    if (r->status == TM_OK)
      r->status = tm_map_put(t->seen, closure, (void *)(uintptr_t)turns);
  }
}

void tm_tokens_unpack(tm_tokens *t, tm_unpacker *r) {
  tm_tokens_forget(t);
  pthread_mutex_lock(&t->mu);
  tm_unpack_array(r, 4, 4);
  t->lowest = tm_unpack_uint(r);
  tokens_unpack_seen(t, r);
  t->nrefused = tm_unpack_array(r, 0, TM_REFUSED_MAX);
  for (uint32_t i = 0; i < t->nrefused; i++) t->refused[i] = tm_unpack_uint(r);
  t->next = t->nrefused % TM_REFUSED_MAX;
  uint32_t n = tm_unpack_array(r, 0, TM_CLIENTS_MAX * 2);
  t->nclient = n / 2;
  for (uint32_t i = 0; i < t->nclient; i++) {
    t->client[i].id = tm_unpack_uint(r);
    t->client[i].last = tm_unpack_uint(r);
  }
  pthread_mutex_unlock(&t->mu);
}
