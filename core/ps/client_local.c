#include <string.h>

#include "base/mem.h"
#include "ps/client.h"

/*
 * Design.  begin does everything, wait only says that it is done: the store runs in the
 * caller's thread, reads and writes the caller's memory, and nothing is copied.
 */
typedef struct local_client {
  tm_ps_client c; /* first */
  tm_store *store;
} local_client;

static tm_store *local_store(tm_ps_client *c) { return ((local_client *)c)->store; }

/* What the store says about the request is in the request. */
static tm_status local_begin(tm_ps_client *c, tm_ps_request *rq, tm_err *err) {
  (void)err;
  tm_store_handle(local_store(c), rq);
  return TM_OK;
}

static tm_status local_wait(tm_ps_client *c, tm_ps_request *rq, tm_err *err) {
  (void)c;
  (void)rq;
  (void)err;
  return TM_OK;
}

static tm_status local_create(tm_ps_client *c, const tm_shard_spec *spec, int32_t n,
                              tm_err *err) {
  for (int32_t i = 0; i < n; i++)
    TM_TRY(tm_store_create(local_store(c), &spec[i], err));
  return TM_OK;
}

static tm_status local_drop(tm_ps_client *c, uint64_t uid, uint32_t shard,
                            tm_err *err) {
  (void)err;
  tm_store_drop(local_store(c), uid, shard);
  return TM_OK;
}

static tm_status local_refuse(tm_ps_client *c, uint64_t incarnation, tm_err *err) {
  (void)err;
  tm_store_refuse(local_store(c), incarnation);
  return TM_OK;
}

static tm_status local_stats(tm_ps_client *c, tm_store_stats *out, tm_err *err) {
  (void)err;
  tm_store_get_stats(local_store(c), out);
  return TM_OK;
}

static tm_status local_commit(tm_ps_client *c, const tm_ps_commit *end, tm_err *err) {
  return tm_store_commit(local_store(c), end, err);
}

static tm_status local_committed(tm_ps_client *c, tm_err *err) {
  (void)c;
  (void)err;
  return TM_OK;
}

static tm_status local_put(tm_ps_client *c, const tm_ps_place *p, const tm_view *rows,
                           tm_err *err) {
  return tm_store_put(local_store(c), p, rows, err);
}

static void local_close(tm_ps_client *c) { tm_free(c, sizeof(local_client)); }

tm_status tm_ps_client_local(tm_store *store, tm_ps_client **out) {
  *out = NULL;
  local_client *l = tm_calloc(1, sizeof *l);
  if (!l) return TM_ENOMEM;
  l->store = store;
  memcpy(l->c.task, tm_store_task(store), sizeof l->c.task);
  l->c.begin = local_begin;
  l->c.wait = local_wait;
  l->c.create = local_create;
  l->c.drop = local_drop;
  l->c.refuse = local_refuse;
  l->c.stats = local_stats;
  l->c.commit = local_commit;
  l->c.committed = local_committed;
  l->c.put = local_put;
  l->c.close = local_close;
  *out = &l->c;
  return TM_OK;
}
