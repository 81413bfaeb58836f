#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "cluster/coord_parts.h"

/*
 * Design.  A registry of what lives on every worker, in order of making, so that a
 * worker that comes back (or is new) gets all of it.
 *
 * Invariants:
 *   (1) uids rise with the index only by chance; `made` rises with it always.
 *   (2) place[i] is behind the last completed closure of worker i since its iterator
 * was made there, so it counts from 0 where the iterator was begun anew. (3) A READY
 * worker was told of each entry; one that is being welcomed is told of what is made or
 * dropped meanwhile before it is READY.
 */
static void resource_release(coord_resource *r) {
  for (int32_t i = 0; i < r->n; i++) tm_var_info_unref(r->info[i]);
  tm_free(r->info, (size_t)r->n * sizeof *r->info);
  tm_graph_unref(r->graph);
  tm_dataset_unref(r->ds);
  coord_accounts_free(r->accounts);
  tm_free(r->place, (size_t)r->nplace * sizeof *r->place);
}

void coord_resources_free(tm_coordinator *c) {
  for (int32_t i = 0; i < c->nresource; i++) resource_release(&c->resource[i]);
  tm_free(c->resource, (size_t)c->max_resource * sizeof *c->resource);
}

static tm_status resource_send(const coord_resource *r, tm_worker_link *l,
                               tm_iter_place from, tm_err *err) {
  if (r->ds) return l->add_iterator(l, r->uid, r->ds, r->seed, from, r->dealt, err);
  return l->add_locals(l, r->uid, r->info, r->n, r->graph, err);
}

/* The place of a worker; NULL: no memory for it. */
static coord_place *resource_place(coord_resource *r, int32_t index) {
  if (index < r->nplace) return &r->place[index];
  int32_t n = index + 1;
  void *p = tm_realloc(r->place, (size_t)r->nplace * sizeof *r->place,
                       (size_t)n * sizeof *r->place);
  if (!p) return NULL;
  r->place = p;
  memset(r->place + r->nplace, 0, (size_t)(n - r->nplace) * sizeof *r->place);
  r->nplace = n;
  return &r->place[index];
}

/* Where the iterator begins that is made now on a worker. */
static tm_status resource_from(coord_resource *r, int32_t index, tm_iter_place *from) {
  *from = (tm_iter_place){0, 0};
  if (!r->ds) return TM_OK;
  coord_place *p = resource_place(r, index);
  if (!p) return TM_ENOMEM;
  if (!r->resume && !p->sought) p->at = *from;
  p->sought = false;
  *from = p->at;
  return TM_OK;
}

coord_resource *coord_resource_find(tm_coordinator *c, uint64_t uid) {
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
    if (!coord_resource_find(c, uid)) TM_TRY(l->drop(l, uid));
  return TM_OK;
}

/* What is needed of an entry while mu is not held. */
static tm_status resource_copy(const coord_resource *r, coord_resource *out) {
  *out = (coord_resource){
      .uid = r->uid, .made = r->made, .seed = r->seed, .dealt = r->dealt};
  if (r->ds) {
    out->ds = tm_dataset_ref(r->ds);
    return TM_OK;
  }
  out->info = tm_calloc((size_t)r->n, sizeof *out->info);
  if (r->n && !out->info) return TM_ENOMEM;
  for (int32_t i = 0; i < r->n; i++) out->info[i] = tm_var_info_ref(r->info[i]);
  out->n = r->n;
  out->graph = tm_graph_ref(r->graph);
  return TM_OK;
}

/* One entry, again when it was sent to another place meanwhile.  Lets go of mu. */
static tm_status resource_tell(tm_coordinator *c, const coord_worker *w,
                               coord_resource *r, tm_worker_link *l, tm_map *told,
                               tm_err *err) {
  coord_resource copy;
  tm_iter_place from;
  TM_TRY(resource_from(r, w->index, &from));
  TM_TRY(resource_copy(r, &copy));
  bool again = tm_map_get(told, copy.uid) != NULL;
  tm_status s = tm_map_put(told, copy.uid, l);
  pthread_mutex_unlock(&c->mu);
  if (s == TM_OK && again) s = l->drop(l, copy.uid);
  if (s == TM_OK) s = resource_send(&copy, l, from, err);
  resource_release(&copy);
  pthread_mutex_lock(&c->mu);
  return s;
}

tm_status coord_resources_send(tm_coordinator *c, const coord_worker *w,
                               tm_worker_link *l, tm_err *err) {
  tm_map *told;
  coord_resource *r;
  uint64_t made = 0;
  tm_status s = tm_map_new(&told);
  while (s == TM_OK && (r = resource_after(c, made))) {
    made = r->made;
    s = resource_tell(c, w, r, l, told, err);
  }
  if (s == TM_OK) s = resources_drop_gone(c, l, told);
  tm_map_free(told);
  return s == TM_ENOMEM ? tm_nomem(err, "resources of a worker") : s;
}

/* --- all workers --- */

static tm_status resource_send_all(tm_coordinator *c, coord_resource *r, tm_err *err) {
  for (int32_t i = 0; i < c->nworker; i++) {
    coord_worker *w = c->worker[i];
    coord_place *p = r->ds ? resource_place(r, i) : NULL;
    if (r->ds && !p) return tm_nomem(err, "an iterator");
    if (w->state != COORD_READY) continue;
    tm_status s = resource_send(r, w->link, p ? p->at : (tm_iter_place){0, 0}, err);
    if (s && s != TM_EUNAVAILABLE) return s; /* one that goes gets it when it is back */
  }
  return TM_OK;
}

/* Add an entry (taken) and tell all. */
static tm_status resource_add(tm_coordinator *c, coord_resource *r, tm_err *err) {
  tm_status s = resource_room(c) ? tm_nomem(err, "a resource") : TM_OK;
  if (s) {
    resource_release(r);
    return s;
  }
  coord_resource *at = &c->resource[c->nresource++];
  *at = *r;
  at->made = ++c->made;
  s = resource_send_all(c, at, err);
  if (s) resource_forget(c, at);
  return s;
}

static tm_status resource_add_iterator(tm_coordinator *c, coord_resource r,
                                       uint64_t seed, tm_err *err) {
  pthread_mutex_lock(&c->mu);
  r.ds = tm_dataset_ref(r.ds);
  r.seed = tm_mix64(seed + c->made); /* each iterator shuffles in its own way */
  if (r.accounts) coord_accounts_draw(r.accounts, ++c->draws);
  tm_status s = resource_add(c, &r, err);
  pthread_mutex_unlock(&c->mu);
  return s;
}

tm_status tm_coordinator_add_iterator(tm_coordinator *c, uint64_t uid, tm_dataset *ds,
                                      uint64_t seed, bool resume, tm_err *err) {
  coord_resource r = {.uid = uid, .ds = ds, .resume = resume};
  return resource_add_iterator(c, r, seed, err);
}

tm_status tm_coordinator_add_dealt(tm_coordinator *c, uint64_t uid, tm_dataset *ds,
                                   uint64_t seed, tm_err *err) {
  coord_resource r = {.uid = uid, .ds = ds, .dealt = true};
  TM_TRY(coord_accounts_new(ds, &r.accounts, err));
  return resource_add_iterator(c, r, seed, err);
}

tm_status tm_coordinator_add_locals(tm_coordinator *c, uint64_t uid,
                                    tm_var_info *const *v, int32_t n, tm_graph *init,
                                    tm_err *err) {
  coord_resource r = {.uid = uid, .n = n};
  r.info = tm_calloc((size_t)n, sizeof(tm_var_info *));
  if (n && !r.info) return tm_nomem(err, "a resource");
  for (int32_t i = 0; i < n; i++) r.info[i] = tm_var_info_ref(v[i]);
  r.graph = tm_graph_ref(init);
  pthread_mutex_lock(&c->mu);
  tm_status s = resource_add(c, &r, err);
  pthread_mutex_unlock(&c->mu);
  return s;
}

bool tm_coordinator_holds(tm_coordinator *c, uint64_t variable) {
  bool found = false;
  pthread_mutex_lock(&c->mu);
  for (int32_t i = 0; i < c->nresource && !found; i++)
    for (int32_t k = 0; k < c->resource[i].n && !found; k++)
      found = c->resource[i].info[k]->uid == variable;
  pthread_mutex_unlock(&c->mu);
  return found;
}

/* --- places --- */

void coord_resources_took(tm_coordinator *c, const coord_worker *w,
                          const coord_item *it, const tm_completion *d) {
  for (int32_t i = 0, k = 0; i < it->narg && k < d->ntook; i++) {
    if (it->arg[i].t) continue;
    const tm_took *t = &d->took[k++];
    if (t->given == 0 && t->failed == 0) continue;
    coord_resource *r = coord_resource_find(c, it->arg[i].iterator);
    coord_place *p = r && !r->dealt ? resource_place(r, w->index) : NULL;
    if (!p) continue;
    p->at.given += t->given;
    p->at.failed += t->failed;
  }
}

tm_status tm_coordinator_places(tm_coordinator *c, uint64_t uid, uint64_t *seed,
                                tm_iter_place *place, int32_t max, int32_t *n) {
  pthread_mutex_lock(&c->mu);
  const coord_resource *r = coord_resource_find(c, uid);
  *n = c->nworker;
  for (int32_t i = 0; r && i < max && i < c->nworker; i++)
    place[i] = i < r->nplace ? r->place[i].at : (tm_iter_place){0, 0};
  if (r) *seed = r->seed;
  pthread_mutex_unlock(&c->mu);
  return r ? TM_OK : TM_ENOTFOUND;
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
  coord_resource *r = coord_resource_find(c, uid);
  if (r) resource_forget(c, r);
  for (int32_t i = 0; i < c->nworker; i++) resource_drop_at(c, c->worker[i], uid);
  pthread_mutex_unlock(&c->mu);
}

/* The entry gets a number anew, so that a worker that is being welcomed hears of it. */
static void resource_move(tm_coordinator *c, coord_resource *r, uint64_t seed,
                          const tm_iter_place *place, int32_t n) {
  coord_resource moved = *r;
  int32_t i = (int32_t)(r - c->resource);
  for (; i + 1 < c->nresource; i++) c->resource[i] = c->resource[i + 1];
  moved.made = ++c->made;
  moved.seed = seed;
  for (i = 0; i < moved.nplace; i++) {
    moved.place[i].at = i < n ? place[i] : (tm_iter_place){0, 0};
    moved.place[i].sought = i >= c->nworker || c->worker[i]->state != COORD_READY;
  }
  c->resource[c->nresource - 1] = moved;
}

tm_status coord_resource_again(tm_coordinator *c, uint64_t uid, uint64_t seed,
                               const tm_iter_place *place, int32_t n, tm_err *err) {
  coord_resource *r = coord_resource_find(c, uid);
  for (int32_t i = 0; i < c->nworker; i++)
    if (!resource_place(r, i)) return tm_nomem(err, "an iterator");
  resource_move(c, r, seed, place, n);
  for (int32_t i = 0; i < c->nworker; i++) resource_drop_at(c, c->worker[i], uid);
  r = coord_resource_find(c, uid); /* it may have moved meanwhile */
  return r ? resource_send_all(c, r, err) : TM_OK;
}

tm_status tm_coordinator_seek(tm_coordinator *c, uint64_t uid, uint64_t seed,
                              const tm_iter_place *place, int32_t n, tm_err *err) {
  tm_status s = TM_OK;
  pthread_mutex_lock(&c->mu);
  if (!coord_resource_find(c, uid))
    s = tm_fail(err, TM_ENOTFOUND, "there is no such iterator (any more)");
  if (s == TM_OK && !coord_idle(c) && !c->suspended)
    s = tm_fail(
        err, TM_EPRECOND,
        "functions are queued or run, which take from this iterator: join first");
  if (s == TM_OK) s = coord_resource_again(c, uid, seed, place, n, err);
  pthread_mutex_unlock(&c->mu);
  return s;
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
