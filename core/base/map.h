/*
 * map.h - hash maps from a 64-bit key, or from a string, to a pointer.
 *
 * Open addressing, linear probing, load <= 0.7.  Insertion order is kept by the
 * caller where it matters.
 *
 * Ownership: the map owns its table and copies of string keys, not the values.
 * Threads:   one at a time.
 */
#ifndef TM_BASE_MAP_H
#define TM_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct tm_map tm_map;

TM_CHECKED tm_status tm_map_new(tm_map **out);
void tm_map_free(tm_map *m); /* m may be NULL */
size_t tm_map_count(const tm_map *m);

void *tm_map_get(const tm_map *m, uint64_t key); /* NULL when absent */
TM_CHECKED tm_status tm_map_put(tm_map *m, uint64_t key, void *value); /* replaces */
void *tm_map_del(tm_map *m, uint64_t key); /* the value, NULL when absent */

void *tm_map_gets(const tm_map *m, const char *key, size_t len);
TM_CHECKED tm_status tm_map_puts(tm_map *m, const char *key, size_t len, void *value);
void *tm_map_dels(tm_map *m, const char *key, size_t len);

/* Walk: start with *pos = 0; false at the end.  key/skey/len may be NULL.  The map
 * must not change meanwhile. */
bool tm_map_next(const tm_map *m, size_t *pos, uint64_t *key, const char **skey,
                 size_t *len, void **value);

/* 64-bit hash of bytes (wyhash-like quality, stable across runs and machines). */
uint64_t tm_hash64(const void *p, size_t n, uint64_t seed);
/* Mixes one 64-bit integer (splitmix64's finalizer). */
uint64_t tm_mix64(uint64_t x);

#endif
