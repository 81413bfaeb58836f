#include "cluster/catalog.h"

#include <pthread.h>
#include <string.h>

#include "base/check.h"
#include "base/map.h"
#include "base/mem.h"

struct tm_catalog {
  atomic_int refs;
  _Atomic uint64_t version;
  pthread_mutex_t mu;
  tm_map *by_uid; /* guarded by mu; values are tm_var_info, a reference each */
};

static size_t catalog_info_size(int32_t nshard) {
  return sizeof(tm_var_info) + (size_t)nshard * sizeof(tm_shard_info);
}

tm_status tm_var_info_new(uint64_t uid, tm_dtype t, const tm_shape *shape,
                          const char *name, bool user, int32_t nshard,
                          tm_var_info **out) {
  *out = NULL;
  if (nshard < 1 || nshard > TM_MAX_SHARDS) return TM_EINVAL;
  tm_var_info *v = tm_calloc(1, catalog_info_size(nshard));
  if (!v) return TM_ENOMEM;
  atomic_init(&v->refs, 1);
  v->uid = uid;
  v->dtype = t;
  v->shape = *shape;
  v->user = user;
  v->nshard = nshard;
  strncpy(v->name, name ? name : "", sizeof v->name - 1);
  v->shard[0].rows = shape->rank ? shape->dim[0] : 1;
  *out = v;
  return TM_OK;
}

tm_var_info *tm_var_info_ref(tm_var_info *v) {
  atomic_fetch_add_explicit(&v->refs, 1, memory_order_relaxed);
  return v;
}

void tm_var_info_unref(tm_var_info *v) {
  if (v && atomic_fetch_sub_explicit(&v->refs, 1, memory_order_acq_rel) == 1)
    tm_free(v, catalog_info_size(v->nshard));
}

tm_status tm_catalog_new(tm_catalog **out) {
  *out = NULL;
  tm_catalog *c = tm_calloc(1, sizeof *c);
  if (!c) return TM_ENOMEM;
  if (tm_map_new(&c->by_uid)) {
    tm_free(c, sizeof *c);
    return TM_ENOMEM;
  }
  atomic_init(&c->refs, 1);
  pthread_mutex_init(&c->mu, NULL);
  *out = c;
  return TM_OK;
}

tm_catalog *tm_catalog_ref(tm_catalog *c) {
  atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
  return c;
}

void tm_catalog_unref(tm_catalog *c) {
  if (!c || atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) != 1) return;
  size_t pos = 0;
  void *v;
  while (tm_map_next(c->by_uid, &pos, NULL, NULL, NULL, &v)) tm_var_info_unref(v);
  tm_map_free(c->by_uid);
  pthread_mutex_destroy(&c->mu);
  tm_free(c, sizeof *c);
}

tm_status tm_catalog_add(tm_catalog *c, tm_var_info *v) {
  pthread_mutex_lock(&c->mu);
  tm_var_info *old = tm_map_get(c->by_uid, v->uid);
  tm_status s = tm_map_put(c->by_uid, v->uid, v);
  if (s == TM_OK) tm_var_info_ref(v);
  if (s == TM_OK && old) atomic_fetch_add(&c->version, 1);
  pthread_mutex_unlock(&c->mu);
  if (s == TM_OK) tm_var_info_unref(old);
  return s;
}

void tm_catalog_del(tm_catalog *c, uint64_t uid) {
  pthread_mutex_lock(&c->mu);
  tm_var_info *v = tm_map_del(c->by_uid, uid);
  if (v) atomic_fetch_add(&c->version, 1);
  pthread_mutex_unlock(&c->mu);
  tm_var_info_unref(v);
}

tm_var_info *tm_catalog_get(tm_catalog *c, uint64_t uid) {
  pthread_mutex_lock(&c->mu);
  tm_var_info *v = tm_map_get(c->by_uid, uid);
  if (v) tm_var_info_ref(v);
  pthread_mutex_unlock(&c->mu);
  return v;
}

tm_status tm_catalog_each(tm_catalog *c,
                          tm_status (*fn)(void *ud, tm_var_info *v, tm_err *err),
                          void *ud, tm_err *err) {
  tm_status s = TM_OK;
  size_t pos = 0;
  void *v;
  pthread_mutex_lock(&c->mu);
  while (s == TM_OK && tm_map_next(c->by_uid, &pos, NULL, NULL, NULL, &v))
    s = fn(ud, v, err);
  pthread_mutex_unlock(&c->mu);
  return s;
}

uint64_t tm_catalog_version(const tm_catalog *c) { return atomic_load(&c->version); }
