#include "base/map.h"

#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/mem.h"

/*
 * Design.  One table holds both kinds of key: a string's slot has its copy in skey
 * and its hash in key; an integer's slot has skey NULL.  Deletion moves later
 * entries of the same run back, so there are no tombstones and a table that is
 * filled and emptied for ever stays as quick as new.
 *
 * Invariants:
 *   (1) The number of slots is 0 or a power of two, and count <= 0.7 * slots.
 *   (2) From an entry's home slot to its own slot every slot is used.
 */
enum { MAP_FIRST = 16, MAP_SEED = 0x7469 };

struct map_slot {
  uint64_t key; /* the integer, or the string's hash */
  char *skey;   /* NULL: integer key */
  size_t len;
  void *value;
  bool used;
};

struct tm_map {
  struct map_slot *slot;
  size_t slots, count;
};

uint64_t tm_mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9u;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/* Fold of the 128-bit product, with its factors kept in so that a zero factor
 * does not wipe out the other. */
static uint64_t map_fold(uint64_t a, uint64_t b) {
  unsigned __int128 m = (unsigned __int128)a * b;
  return a ^ b ^ (uint64_t)m ^ (uint64_t)(m >> 64);
}

uint64_t tm_hash64(const void *data, size_t n, uint64_t seed) {
  const uint8_t *p = data;
  uint64_t h = seed ^ 0xA0761D6478BD642Fu;
  size_t left = n;
  for (; left >= 16; p += 16, left -= 16)
    h = map_fold(tm_get64(p) ^ 0xE7037ED1A0B428DBu, tm_get64(p + 8) ^ h);
  uint8_t tail[16] = {0};
  if (left) memcpy(tail, p, left);
  h = map_fold(tm_get64(tail) ^ 0x8EBC6AF09C88C6E3u, tm_get64(tail + 8) ^ h);
  return tm_mix64(map_fold(h ^ 0x589965CC75374CC3u, (uint64_t)n ^ 0x1D8E4E27C47D124Fu));
}

static uint64_t map_home(const struct map_slot *s) {
  return s->skey ? s->key : tm_mix64(s->key);
}

static bool map_same(const struct map_slot *s, uint64_t key, const char *skey,
                     size_t len) {
  if (s->key != key || !s->skey != !skey) return false;
  return !skey || (s->len == len && (len == 0 || memcmp(s->skey, skey, len) == 0));
}

/* The slot of a key, or the free one where it would go.  The table is not empty
 * and never full (1). */
static struct map_slot *map_find(const tm_map *m, uint64_t key, const char *skey,
                                 size_t len) {
  size_t mask = m->slots - 1;
  size_t i = (size_t)(skey ? key : tm_mix64(key)) & mask;
  while (m->slot[i].used && !map_same(&m->slot[i], key, skey, len)) i = (i + 1) & mask;
  return &m->slot[i];
}

tm_status tm_map_new(tm_map **out) {
  *out = tm_calloc(1, sizeof **out);
  return *out ? TM_OK : TM_ENOMEM;
}

static void map_free_key(struct map_slot *s) {
  if (s->skey) tm_free(s->skey, s->len + 1);
}

void tm_map_free(tm_map *m) {
  if (!m) return;
  for (size_t i = 0; i < m->slots; i++)
    if (m->slot[i].used) map_free_key(&m->slot[i]);
  tm_free(m->slot, m->slots * sizeof *m->slot);
  tm_free(m, sizeof *m);
}

size_t tm_map_count(const tm_map *m) { return m->count; }

/* Make room for one more entry. */
static tm_status map_grow(tm_map *m) {
  if (m->slots && (m->count + 1) * 10 <= m->slots * 7) return TM_OK;
  if (m->slots > SIZE_MAX / 32) return TM_ENOMEM;
  tm_map bigger = {NULL, m->slots ? m->slots * 2 : MAP_FIRST, m->count};
  bigger.slot = tm_calloc(bigger.slots, sizeof *bigger.slot);
  if (!bigger.slot) return TM_ENOMEM;
  for (size_t i = 0; i < m->slots; i++) {
    const struct map_slot *s = &m->slot[i];
    if (s->used) *map_find(&bigger, s->key, s->skey, s->len) = *s;
  }
  tm_free(m->slot, m->slots * sizeof *m->slot);
  *m = bigger;
  return TM_OK;
}

static struct map_slot *map_lookup(const tm_map *m, uint64_t key, const char *skey,
                                   size_t len) {
  if (m->count == 0) return NULL;
  struct map_slot *s = map_find(m, key, skey, len);
  return s->used ? s : NULL;
}

/* Keys are bytes: zeros within count. */
static char *map_copy_key(const char *skey, size_t len) {
  if (len >= PTRDIFF_MAX) return NULL;
  char *copy = tm_malloc(len + 1);
  if (!copy) return NULL;
  if (len) memcpy(copy, skey, len);
  copy[len] = '\0';
  return copy;
}

static tm_status map_insert(tm_map *m, uint64_t key, const char *skey, size_t len,
                            void *value) {
  struct map_slot *s = map_lookup(m, key, skey, len);
  if (s) {
    s->value = value;
    return TM_OK;
  }
  tm_status status = map_grow(m);
  if (status != TM_OK) return status;
  char *copy = NULL;
  if (skey && !(copy = map_copy_key(skey, len))) return TM_ENOMEM;
  s = map_find(m, key, skey, len);
  *s = (struct map_slot){key, copy, len, value, true};
  m->count++;
  return TM_OK;
}

/* Close the gap at s: move back each entry of the run that may stand there (2). */
static void map_close_gap(tm_map *m, struct map_slot *s) {
  size_t mask = m->slots - 1;
  size_t gap = (size_t)(s - m->slot);
  for (size_t i = (gap + 1) & mask; m->slot[i].used; i = (i + 1) & mask) {
    size_t home = (size_t)map_home(&m->slot[i]) & mask;
    if (((i - home) & mask) < ((i - gap) & mask)) continue;
    m->slot[gap] = m->slot[i];
    gap = i;
  }
  m->slot[gap] = (struct map_slot){0};
}

static void *map_remove(tm_map *m, uint64_t key, const char *skey, size_t len) {
  struct map_slot *s = map_lookup(m, key, skey, len);
  if (!s) return NULL;
  void *value = s->value;
  map_free_key(s);
  map_close_gap(m, s);
  m->count--;
  return value;
}

void *tm_map_get(const tm_map *m, uint64_t key) {
  const struct map_slot *s = map_lookup(m, key, NULL, 0);
  return s ? s->value : NULL;
}

tm_status tm_map_put(tm_map *m, uint64_t key, void *value) {
  return map_insert(m, key, NULL, 0, value);
}

void *tm_map_del(tm_map *m, uint64_t key) { return map_remove(m, key, NULL, 0); }

void *tm_map_gets(const tm_map *m, const char *key, size_t len) {
  const struct map_slot *s = map_lookup(m, tm_hash64(key, len, MAP_SEED), key, len);
  return s ? s->value : NULL;
}

tm_status tm_map_puts(tm_map *m, const char *key, size_t len, void *value) {
  return map_insert(m, tm_hash64(key, len, MAP_SEED), key, len, value);
}

void *tm_map_dels(tm_map *m, const char *key, size_t len) {
  return map_remove(m, tm_hash64(key, len, MAP_SEED), key, len);
}

bool tm_map_next(const tm_map *m, size_t *pos, uint64_t *key, const char **skey,
                 size_t *len, void **value) {
  while (*pos < m->slots && !m->slot[*pos].used) ++*pos;
  if (*pos >= m->slots) return false;
  const struct map_slot *s = &m->slot[(*pos)++];
  if (key) *key = s->key;
  if (skey) *skey = s->skey;
  if (len) *len = s->len;
  if (value) *value = s->value;
  return true;
}
