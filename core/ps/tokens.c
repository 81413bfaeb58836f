#include "ps/tokens.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"

/*
 * Design.  `seen` maps a closure to the number of turns it is known to have sent
 * (highest turn + 1), kept in the pointer itself.  Refused incarnations are a ring: the
 * oldest goes when 1024 newer ones came.
 *
 * Invariants (under mu):
 *   (1) Every closure in seen is >= lowest, unless lowest went down with a new
 *       coordinator; values are > 0.
 */
struct tm_tokens {
  pthread_mutex_t mu;
  tm_map *seen;
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
  *out = t;
  return TM_OK;
}

void tm_tokens_free(tm_tokens *t) {
  if (!t) return;
  pthread_mutex_destroy(&t->mu);
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

static void tokens_advance(tm_tokens *t, uint64_t lowest) {
  if (lowest <= t->lowest) return;
  uint64_t from = t->lowest;
  t->lowest = lowest;
  if (lowest - from > tm_map_count(t->seen)) {
    while (tokens_drop_one(t)) continue;
    return;
  }
  for (uint64_t c = from; c < lowest; c++) tm_map_del(t->seen, c);
}

static tm_status tokens_take(tm_tokens *t, const tm_ps_token *token, bool *repeat,
                             uint64_t *before, tm_err *err) {
  if (tokens_refused(t, token->incarnation))
    return tm_fail(err, TM_EABORTED,
                   "this task (incarnation %" PRIx64
                   ") was declared lost; its updates are refused",
                   token->incarnation);
  if (token->closure == 0) return TM_OK;
  tokens_advance(t, token->lowest);
  *before = (uint64_t)(uintptr_t)tm_map_get(t->seen, token->closure);
  *repeat = *before > token->turn;
  if (*repeat) return TM_OK;
  if (*before == 0 && tm_map_count(t->seen) >= TM_TOKENS_MAX)
    return tm_fail(err, TM_EEXHAUSTED, "%d closures are unfinished on this ps",
                   (int)TM_TOKENS_MAX);
  void *turns = (void *)(uintptr_t)((uint64_t)token->turn + 1);
  if (tm_map_put(t->seen, token->closure, turns)) return tm_nomem(err, "a token");
  return TM_OK;
}

tm_status tm_tokens_take(tm_tokens *t, const tm_ps_token *token, bool *repeat,
                         uint64_t *before, tm_err *err) {
  *repeat = false;
  *before = 0;
  pthread_mutex_lock(&t->mu);
  tm_status s = tokens_take(t, token, repeat, before, err);
  pthread_mutex_unlock(&t->mu);
  return s;
}

void tm_tokens_undo(tm_tokens *t, const tm_ps_token *token, uint64_t before) {
  if (token->closure == 0) return;
  pthread_mutex_lock(&t->mu);
  /* Replacing a value in place cannot run out of memory. */
  if (before == 0)
    tm_map_del(t->seen, token->closure);
  else if (tm_map_get(t->seen, token->closure) &&
           tm_map_put(t->seen, token->closure, (void *)(uintptr_t)before))
    tm_map_del(t->seen, token->closure);
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
