#include "lua/route.h"

#include <string.h>

#include "base/check.h"
#include "base/map.h"
#include "base/mem.h"

/*
 * Design.  A map from uid to tm_vars.  The value `gone` marks a variable whose cluster
 * was closed, so that its use gives a better message than "unknown".  Almost every
 * exchange concerns one tm_vars and is passed on as it is; a mixed one is dealt with
 * in runs: a home at a time, in order of first appearance, UPDATEs of all homes before
 * READs of any (the contract of an exchange).
 */
struct tm_router {
  tm_state state; /* first: a router is a tm_state */
  tm_vars *local;
  tm_map *home;
  bool (*mend)(void *ud, tm_vars *v, tm_status *s, tm_err *err); /* may be NULL */
  void *mend_ud;
};

static char router_gone; /* its address is the mark */

tm_vars *tm_router_vars(tm_router *r, uint64_t uid) {
  void *v = tm_map_get(r->home, uid);
  if (v == &router_gone) return NULL;
  return v ? v : r->local;
}

static tm_status router_find(tm_router *r, uint64_t uid, tm_vars **out, tm_err *err) {
  *out = tm_router_vars(r, uid);
  if (*out) return TM_OK;
  return tm_fail(err, TM_EPRECOND, "the strategy of this variable is closed");
}

/* The one home of all requests, or NULL when there are several. */
static tm_status router_single(tm_router *r, const tm_update *up, int32_t nup,
                               const tm_read *rd, int32_t nrd, tm_vars **out,
                               tm_err *err) {
  tm_vars *first = NULL, *v;
  *out = NULL;
  for (int32_t i = 0; i < nup + nrd; i++) {
    TM_TRY(router_find(r, i < nup ? up[i].uid : rd[i - nup].uid, &v, err));
    if (first && v != first) return TM_OK;
    first = v;
  }
  *out = first ? first : r->local;
  return TM_OK;
}

/* The exchange with one tm_vars, again after what was lost was restored. */
static tm_status router_one(tm_router *r, tm_vars *v, const tm_update *up, int32_t nup,
                            tm_read *rd, int32_t nrd, tm_err *err) {
  for (;;) {
    tm_status s = v->state.exchange(&v->state, up, nup, rd, nrd, err);
    if (s != TM_EUNAVAILABLE || v == r->local || !r->mend) return s;
    tm_vars_half *half = tm_vars_half_take(v);
    if (!r->mend(r->mend_ud, v, &s, err)) {
      tm_vars_half_free(v, half);
      return s;
    }
    if (err) tm_err_clear(err);
    tm_vars_half_again(v, half);
  }
}

static tm_status router_each(tm_router *r, const tm_update *up, int32_t nup,
                             tm_read *rd, int32_t nrd, tm_err *err) {
  tm_vars *v;
  for (int32_t i = 0; i < nup; i++) {
    TM_TRY(router_find(r, up[i].uid, &v, err));
    TM_TRY(router_one(r, v, &up[i], 1, NULL, 0, err));
  }
  for (int32_t i = 0; i < nrd; i++) {
    TM_TRY(router_find(r, rd[i].uid, &v, err));
    TM_TRY(router_one(r, v, NULL, 0, &rd[i], 1, err));
  }
  return TM_OK;
}

static tm_status router_exchange(tm_state *s, const tm_update *up, int32_t nup,
                                 tm_read *rd, int32_t nrd, tm_err *err) {
  tm_router *r = (tm_router *)(void *)s;
  tm_vars *v;
  TM_TRY(router_single(r, up, nup, rd, nrd, &v, err));
  if (v) return router_one(r, v, up, nup, rd, nrd, err);
  return router_each(r, up, nup, rd, nrd, err);
}

static tm_status router_next(tm_state *s, uint64_t iterator, tm_tensor **out, int32_t n,
                             tm_err *err) {
  tm_router *r = (tm_router *)(void *)s;
  return r->local->state.next(&r->local->state, iterator, out, n, err);
}

static tm_status router_type_of(tm_state *s, uint64_t uid, tm_type *out, tm_err *err) {
  tm_router *r = (tm_router *)(void *)s;
  tm_vars *v;
  TM_TRY(router_find(r, uid, &v, err));
  return v->state.type_of(&v->state, uid, out, err);
}

tm_status tm_router_new(tm_vars *local, tm_router **out) {
  tm_router *r = *out = tm_calloc(1, sizeof *r);
  if (!r) return TM_ENOMEM;
  r->state.exchange = router_exchange;
  r->state.next = router_next;
  r->state.type_of = router_type_of;
  r->local = local;
  if (tm_map_new(&r->home) == TM_OK) return TM_OK;
  tm_free(r, sizeof *r);
  *out = NULL;
  return TM_ENOMEM;
}

void tm_router_free(tm_router *r) {
  if (!r) return;
  tm_map_free(r->home);
  tm_free(r, sizeof *r);
}

tm_state *tm_router_state(tm_router *r) { return &r->state; }

tm_status tm_router_add(tm_router *r, uint64_t uid, tm_vars *vars) {
  return tm_map_put(r->home, uid, vars);
}

void tm_router_del(tm_router *r, uint64_t uid) { tm_map_del(r->home, uid); }

void tm_router_forget(tm_router *r, tm_vars *vars) {
  size_t pos = 0;
  uint64_t uid;
  void *v;
  while (tm_map_next(r->home, &pos, &uid, NULL, NULL, &v)) {
    if (v != vars) continue;
    /* Replacing a value moves nothing in the map. */
    tm_status s = tm_map_put(r->home, uid, &router_gone);
    TM_DCHECK(s == TM_OK);
    (void)s;
  }
}

void tm_router_set_mend(tm_router *r,
                        bool (*fn)(void *ud, tm_vars *v, tm_status *s, tm_err *err),
                        void *ud) {
  r->mend = fn;
  r->mend_ud = ud;
}
