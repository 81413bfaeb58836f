#include "cluster/vars.h"

#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/map.h"
#include "base/mem.h"
#include "cluster/vars_split.h"

/*
 * Design.  begin turns the executor's lists into one request a ps (vars_split.c), in an
 * arena that is reset each time; wait collects the answers and puts read rows where
 * they were asked for.  Lane nps is the local store.
 *
 * Invariants:
 *   (1) Between begin and wait `open` is true and lanes with `sent` are outstanding.
 *   (2) Everything a request points at lives in the arena or belongs to the caller.
 *   (3) An info in `cache` is held by a reference; the cache is dropped whenever the
 *       catalogue's version changes.
 *   (4) applied of a lane says that its ps answered the UPDATEs of the last exchange
 *       well; after tm_vars_half_again such lanes get none of the next one.
 */
static void vars_cache_drop(tm_vars_scratch *sc) {
  size_t pos = 0;
  void *v;
  while (tm_map_next(sc->cache, &pos, NULL, NULL, NULL, &v)) tm_var_info_unref(v);
  tm_map_free(sc->cache);
  sc->cache = NULL;
  tm_vars_rows_forget(&sc->rows);
}

tm_status tm_vars_info(tm_vars *v, uint64_t uid, tm_var_info **out, tm_err *err) {
  tm_vars_scratch *sc = v->scratch;
  uint64_t version = tm_catalog_version(v->catalog);
  if (sc->cache && sc->version != version) vars_cache_drop(sc);
  if (!sc->cache && tm_map_new(&sc->cache)) return tm_nomem(err, "a variable's entry");
  sc->version = version;
  *out = tm_map_get(sc->cache, uid);
  if (*out) return TM_OK;
  tm_var_info *info = tm_catalog_get(v->catalog, uid);
  if (!info)
    return tm_fail(
        err, TM_ENOTFOUND,
        "variable %" PRIx64
        " is not known here: it belongs to another strategy, or to the chief "
        "alone (create it in strategy:scope)",
        uid);
  if (tm_map_put(sc->cache, uid, info)) {
    tm_var_info_unref(info);
    return tm_nomem(err, "a variable's entry");
  }
  *out = info;
  return TM_OK;
}

/* --- sending and waiting --- */

static tm_ps_client *vars_client(tm_vars *v, int32_t lane) {
  return lane == v->nps ? v->local : v->ps[lane];
}

static tm_status vars_send(tm_vars *v, int32_t k, tm_err *err) {
  tm_vars_lane *l = &v->scratch->lane[k];
  tm_ps_client *c = vars_client(v, k);
  if (!c) {
    if (k == v->nps)
      return tm_fail(err, TM_EINVAL,
                     "a variable of the chief alone cannot be used by a scheduled "
                     "function: create it in strategy:scope");
    return tm_fail(err, TM_EUNAVAILABLE, "/job:ps/task:%d is not connected", k);
  }
  memset(&l->rq, 0, sizeof l->rq);
  l->rq.token = v->token;
  if (k == v->nps) l->rq.token.round = 0; /* nobody would end it */
  l->rq.nup = l->nup;
  l->rq.up = l->up;
  l->rq.nrd = l->nrd;
  l->rq.rd = l->rd;
  tm_err_clear(&l->rq.err);
  TM_TRY(c->begin(c, &l->rq, err));
  l->sent = true;
  if (k == v->nps) return TM_OK;
  v->count.updates += l->nup > 0;
  v->count.reads += l->nrd > 0;
  v->count.bytes_updated += l->bytes_up;
  return TM_OK;
}

static void vars_keep_first(tm_status *at, tm_status s, const tm_err *from, tm_err *err,
                            const char *task) {
  if (s == TM_OK) return;
  if (*at == TM_OK) *at = s;
  if (!err || err->code != TM_OK) return;
  *err = *from;
  err->code = s;
  if (!err->task[0]) strncpy(err->task, task, sizeof err->task - 1);
}

/* --- what is half in --- */

typedef struct vars_half_lane {
  bool applied;
  uint32_t anew;
} vars_half_lane;

struct tm_vars_half {
  vars_half_lane lane[1]; /* nps of them */
};

static size_t vars_half_size(const tm_vars *v) {
  return ((size_t)v->nps + 1) * sizeof(vars_half_lane);
}

tm_vars_half *tm_vars_half_take(tm_vars *v) {
  tm_vars_half *h = tm_calloc(1, vars_half_size(v));
  for (int32_t k = 0; h && k < v->nps; k++) {
    const tm_vars_lane *l = &v->scratch->lane[k];
    h->lane[k] = (vars_half_lane){l->applied, l->anew};
  }
  return h;
}

void tm_vars_half_free(const tm_vars *v, tm_vars_half *h) {
  tm_free(h, vars_half_size(v));
}

void tm_vars_half_again(tm_vars *v, tm_vars_half *h) {
  for (int32_t k = 0; h && k < v->nps; k++) {
    tm_vars_lane *l = &v->scratch->lane[k];
    l->applied = h->lane[k].applied && h->lane[k].anew == l->anew;
  }
  v->scratch->again = h != NULL;
  tm_vars_half_free(v, h);
}

/* UPDATEs that are in already stay out of this exchange. */
static void vars_leave_out(tm_vars *v) {
  tm_vars_scratch *sc = v->scratch;
  for (int32_t k = 0; k <= v->nps; k++) {
    tm_vars_lane *l = &sc->lane[k];
    if (!sc->again)
      l->applied = false;
    else if (l->applied)
      l->nup = 0;
  }
  sc->again = false;
}

void tm_vars_replace(tm_vars *v, int32_t k, tm_ps_client *c) {
  if (v->ps[k]) v->ps[k]->close(v->ps[k]);
  v->ps[k] = c;
  v->scratch->lane[k].anew++;
}

/* --- waiting --- */

static void vars_collect(tm_vars *v, int32_t k, tm_status *up, tm_status *rd,
                         tm_err *err) {
  tm_vars_lane *l = &v->scratch->lane[k];
  if (!l->sent) return;
  l->sent = false;
  tm_ps_client *c = vars_client(v, k);
  tm_err lost;
  tm_err_clear(&lost);
  tm_status s = c->wait(c, &l->rq, &lost);
  if (s && lost.code) { /* no answer at all */
    if (l->nup) vars_keep_first(up, s, &lost, err, c->task);
    if (l->nrd) vars_keep_first(rd, s, &lost, err, c->task);
    return;
  }
  if (l->nup && l->rq.up_status == TM_OK) l->applied = true;
  vars_keep_first(up, l->rq.up_status, &l->rq.err, err, c->task);
  vars_keep_first(rd, l->rq.rd_status, &l->rq.err, err, c->task);
  if (k < v->nps && l->rq.rd_status == TM_OK) v->count.bytes_read += l->bytes_rd;
}

tm_status tm_vars_begin(tm_vars *v, const tm_update *up, int32_t nup, tm_read *rd,
                        int32_t nrd, tm_err *err) {
  tm_vars_scratch *sc = v->scratch;
  TM_DCHECK(!sc->open);
  tm_arena_reset(&sc->arena);
  tm_vars_rows_turn(&sc->rows);
  sc->rd = rd;
  sc->nrd = nrd;
  tm_status s = tm_vars_split(v, up, nup, rd, nrd, err);
  if (s) {
    tm_vars_forget_reads(v);
    return s;
  }
  vars_leave_out(v);
  sc->open = true;
  if (nup) v->token.turn++; /* READs need no token, so a re-run counts the same */
  for (int32_t k = 0; k <= v->nps && s == TM_OK; k++)
    if (sc->lane[k].nup || sc->lane[k].nrd) s = vars_send(v, k, err);
  if (s == TM_OK) return TM_OK;
  /* Some are out already: take their answers before the failure is told. */
  tm_status us = TM_OK, rs = TM_OK;
  for (int32_t k = 0; k <= v->nps; k++) vars_collect(v, k, &us, &rs, NULL);
  sc->open = false;
  tm_vars_forget_reads(v);
  return s;
}

tm_status tm_vars_wait(tm_vars *v, tm_status *up_status, tm_status *rd_status,
                       tm_err *err) {
  tm_vars_scratch *sc = v->scratch;
  tm_err own;
  if (!err) err = &own;
  tm_err_clear(err);
  *up_status = *rd_status = TM_OK;
  TM_DCHECK(sc->open);
  for (int32_t k = 0; k <= v->nps; k++) vars_collect(v, k, up_status, rd_status, err);
  sc->open = false;
  if (*rd_status == TM_OK) tm_vars_join_reads(v);
  if (*rd_status) tm_vars_forget_reads(v);
  return *up_status ? *up_status : *rd_status;
}

/* --- the tm_state face --- */

static tm_status vars_exchange(tm_state *s, const tm_update *up, int32_t nup,
                               tm_read *rd, int32_t nrd, tm_err *err) {
  tm_vars *v = (tm_vars *)s;
  tm_status us, rs;
  tm_err local = {0};
  if (!err) err = &local;
  if (v->guard) TM_TRY(v->guard(v->session, err));
  TM_TRY(tm_vars_begin(v, up, nup, rd, nrd, err));
  tm_status st = tm_vars_wait(v, &us, &rs, err);
  if (st) tm_vars_forget_reads(v); /* all or nothing, here */
  return st;
}

static tm_status vars_next(tm_state *s, uint64_t iterator, tm_tensor **out, int32_t n,
                           tm_err *err) {
  tm_vars *v = (tm_vars *)s;
  if (!v->resources)
    return tm_fail(err, TM_EPRECOND, "iterator: this task holds no iterators");
  return tm_resources_next(v->resources, iterator, out, n, err);
}

static tm_status vars_type_of(tm_state *s, uint64_t uid, tm_type *out, tm_err *err) {
  tm_var_info *info;
  TM_TRY(tm_vars_info((tm_vars *)s, uid, &info, err));
  out->dtype = info->dtype;
  out->shape = info->shape;
  return TM_OK;
}

tm_status tm_vars_new(tm_catalog *catalog, tm_ps_client *const *ps, int32_t nps,
                      tm_ps_client *local, tm_vars **out) {
  *out = NULL;
  tm_vars *v = tm_calloc(1, sizeof *v);
  if (!v) return TM_ENOMEM;
  v->ps = tm_calloc((size_t)nps + 1, sizeof(tm_ps_client *));
  v->scratch = tm_calloc(1, sizeof *v->scratch);
  if (v->scratch)
    v->scratch->lane = tm_calloc((size_t)nps + 1, sizeof *v->scratch->lane);
  if (!v->ps || !v->scratch || !v->scratch->lane) goto fail;
  v->scratch->arena.block_bytes = 16384;
  v->scratch->rows.arena[0].block_bytes = v->scratch->rows.arena[1].block_bytes = 16384;
  v->state = (tm_state){vars_exchange, vars_next, vars_type_of};
  v->catalog = tm_catalog_ref(catalog);
  v->nps = nps;
  if (nps) memcpy(v->ps, ps, (size_t)nps * sizeof(tm_ps_client *));
  v->local = local;
  *out = v;
  return TM_OK;

fail:
  if (v->scratch)
    tm_free(v->scratch->lane, ((size_t)nps + 1) * sizeof *v->scratch->lane);
  tm_free(v->scratch, sizeof *v->scratch);
  tm_free(v->ps, ((size_t)nps + 1) * sizeof(tm_ps_client *));
  tm_free(v, sizeof *v);
  return TM_ENOMEM;
}

void tm_vars_free(tm_vars *v) {
  if (!v) return;
  for (int32_t k = 0; k <= v->nps; k++) {
    tm_ps_client *c = vars_client(v, k);
    if (c) c->close(c);
  }
  if (v->scratch->cache) vars_cache_drop(v->scratch);
  tm_arena_release(&v->scratch->arena);
  tm_vars_rows_release(&v->scratch->rows);
  tm_free(v->scratch->lane, ((size_t)v->nps + 1) * sizeof *v->scratch->lane);
  tm_free(v->scratch, sizeof *v->scratch);
  tm_free(v->ps, ((size_t)v->nps + 1) * sizeof(tm_ps_client *));
  tm_catalog_unref(v->catalog);
  tm_free(v, sizeof *v);
}
