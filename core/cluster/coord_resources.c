#include "base/map.h"
#include "base/mem.h"
#include "cluster/coord_parts.h"

/*
 * Design.  A registry of what lives on every worker, in order of making, so that a
 * worker that comes back (or is new) gets all of it.
 *
 * Invariants:
 *   (1) uids rise with the index only by chance; `made` rises with it always.
 *   (2) A READY worker was told of each entry; one that is being welcomed is told of
 *       what is made or dropped meanwhile before it is READY.
 */
static void resource_release(coord_resource *r) { tm_dataset_unref(r->ds); }

void coord_resources_free(tm_coordinator *c) {
  for (int32_t i = 0; i < c->nresource; i++) resource_release(&c->resource[i]);
  tm_free(c->resource, (size_t)c->max_resource * sizeof *c->resource);
}

static tm_status resource_send(const coord_resource *r, tm_worker_link *l,
                               tm_err *err) {
  return l->add_iterator(l, r->uid, r->ds, r->seed, err);
}

static coord_resource *resource_find(tm_coordinator *c, uint64_t uid) {
  for (int32_t i = 0; i < c->nresource; i++)
    if (c->resource[i].uid == uid) return &c->resource[i];
  return NULL;
}

static tm_status resource_room(tm_coordinator *c) {
  if (c->nresource < c->max_resource) return TM_OK;
  int32_t max = c->max_resource ? 2 * c->max_resource : 8;
  coord_resource *a = tm_realloc(c->resource, (size_t)c->max_resource * sizeof *a,
                                 (size_t)max * sizeof *a);
  if (!a) return TM_ENOMEM;
  c->resource = a;
  c->max_resource = max;
  return TM_OK;
}

static void resource_forget(tm_coordinator *c, coord_resource *r) {
  resource_release(r);
  int32_t i = (int32_t)(r - c->resource);
  for (c->nresource--; i < c->nresource; i++) c->resource[i] = c->resource[i + 1];
}

/* --- a new link --- */

/* The first entry made after `made`; NULL: there is none. */
static coord_resource *resource_after(tm_coordinator *c, uint64_t made) {
  for (int32_t i = 0; i < c->nresource; i++)
    if (c->resource[i].made > made) return &c->resource[i];
  return NULL;
}

/* What was dropped while the link was told of it. */
static tm_status resources_drop_gone(tm_coordinator *c, tm_worker_link *l,
                                     const tm_map *told) {
  size_t pos = 0;
  uint64_t uid;
  while (tm_map_next(told, &pos, &uid, NULL, NULL, NULL))
    if (!resource_find(c, uid)) TM_TRY(l->drop(l, uid));
  return TM_OK;
}

tm_status coord_resources_send(tm_coordinator *c, tm_worker_link *l, tm_err *err) {
  tm_map *told;
  coord_resource *r;
  uint64_t made = 0;
  tm_status s = tm_map_new(&told);
  while (s == TM_OK && (r = resource_after(c, made))) {
    coord_resource copy = *r;
    made = copy.made;
    tm_dataset_ref(copy.ds);
    s = tm_map_put(told, copy.uid, l);
    pthread_mutex_unlock(&c->mu);
    if (s == TM_OK) s = resource_send(&copy, l, err);
    resource_release(&copy);
    pthread_mutex_lock(&c->mu);
  }
  if (s == TM_OK) s = resources_drop_gone(c, l, told);
  tm_map_free(told);
  return s == TM_ENOMEM ? tm_nomem(err, "resources of a worker") : s;
}

/* --- all workers --- */

static tm_status resource_send_all(tm_coordinator *c, const coord_resource *r,
                                   tm_err *err) {
  for (int32_t i = 0; i < c->nworker; i++) {
    coord_worker *w = c->worker[i];
    if (w->state != COORD_READY) continue;
    tm_status s = resource_send(r, w->link, err);
    if (s && s != TM_EUNAVAILABLE) return s; /* one that goes gets it when it is back */
  }
  return TM_OK;
}

tm_status tm_coordinator_add_iterator(tm_coordinator *c, uint64_t uid, tm_dataset *ds,
                                      uint64_t seed, tm_err *err) {
  pthread_mutex_lock(&c->mu);
  tm_status s = resource_room(c) ? tm_nomem(err, "an iterator") : TM_OK;
  if (s == TM_OK) {
    coord_resource *r = &c->resource[c->nresource++];
    uint64_t made = ++c->made;
    /* each iterator shuffles in its own way */
    *r = (coord_resource){uid, made, tm_mix64(seed + made - 1), tm_dataset_ref(ds)};
    s = resource_send_all(c, r, err);
    if (s) resource_forget(c, r);
  }
  pthread_mutex_unlock(&c->mu);
  return s;
}

/* Freeing an iterator may take a while, so it is done without mu. */
static void resource_drop_at(tm_coordinator *c, coord_worker *w, uint64_t uid) {
  tm_worker_link *l = w->link;
  if (w->state != COORD_READY) return;
  w->pins++;
  pthread_mutex_unlock(&c->mu);
  tm_status s = l->drop(l, uid);
  pthread_mutex_lock(&c->mu);
  w->pins--;
  pthread_cond_broadcast(&c->changed);
  (void)s; /* a worker that is going down drops it anyway */
}

void tm_coordinator_drop(tm_coordinator *c, uint64_t uid) {
  pthread_mutex_lock(&c->mu);
  coord_resource *r = resource_find(c, uid);
  if (r) resource_forget(c, r);
  for (int32_t i = 0; i < c->nworker; i++) resource_drop_at(c, c->worker[i], uid);
  pthread_mutex_unlock(&c->mu);
}

tm_status tm_coordinator_add_variable(tm_coordinator *c, tm_var_info *v, tm_err *err) {
  tm_status s = TM_OK;
  pthread_mutex_lock(&c->mu);
  for (int32_t i = 0; i < c->nworker && s == TM_OK; i++) {
    coord_worker *w = c->worker[i];
    if (w->state != COORD_READY) continue;
    s = w->link->add_variable(w->link, v, err);
    if (s == TM_EUNAVAILABLE) s = TM_OK; /* it is told when it is back */
  }
  pthread_mutex_unlock(&c->mu);
  return s;
}
