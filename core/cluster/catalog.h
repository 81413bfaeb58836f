/*
 * catalog.h - the variables that one task knows: dtype, shape and where the shards are.
 *
 * Ownership: infos are refcounted and immutable; a catalogue holds a reference each.
 * Threads:   a catalogue is shared by the threads of its task and locked inside.
 */
#ifndef TM_CLUSTER_CATALOG_H
#define TM_CLUSTER_CATALOG_H

#include <stdatomic.h>

#include "tensor/tensor.h"

enum { TM_MAX_SHARDS = 4096 };

typedef struct tm_shard_info {
  int32_t ps;     /* index of the ps, -1: this process's local store */
  int64_t offset; /* first row */
  int64_t rows;   /* rows (1 for an unsharded scalar) */
} tm_shard_info;

typedef struct tm_var_info {
  atomic_int refs;
  uint64_t uid;
  tm_dtype dtype;
  tm_shape shape;
  bool user;
  char name[128];
  int32_t nshard;
  tm_shard_info shard[]; /* in order of rows */
} tm_var_info;

TM_CHECKED tm_status tm_var_info_new(uint64_t uid, tm_dtype t, const tm_shape *shape,
                                     const char *name, bool user, int32_t nshard,
                                     tm_var_info **out);
tm_var_info *tm_var_info_ref(tm_var_info *v);
void tm_var_info_unref(tm_var_info *v);

typedef struct tm_catalog tm_catalog;
TM_CHECKED tm_status tm_catalog_new(tm_catalog **out);
tm_catalog *tm_catalog_ref(tm_catalog *c);
void tm_catalog_unref(tm_catalog *c);
TM_CHECKED tm_status tm_catalog_add(tm_catalog *c, tm_var_info *v);
void tm_catalog_del(tm_catalog *c, uint64_t uid);
tm_var_info *tm_catalog_get(tm_catalog *c, uint64_t uid); /* a reference, or NULL */
/* fn for each entry, until one fails; the catalogue is locked meanwhile. */
TM_CHECKED tm_status tm_catalog_each(tm_catalog *c,
                                     tm_status (*fn)(void *ud, tm_var_info *v,
                                                     tm_err *err),
                                     void *ud, tm_err *err);
/* Changes whenever an entry was removed or replaced: caches look at it. */
uint64_t tm_catalog_version(const tm_catalog *c);

#endif
