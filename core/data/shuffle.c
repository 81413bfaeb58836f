#include <stdlib.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/philox.h"
#include "data/node.h"

/*
 * Design.  TensorFlow's shuffle: a buffer is filled, a random element of it is given
 * and replaced by the next of the input.  The buffer holds rows, so shuffling a
 * memory source moves no bytes.
 *
 * Invariants:
 *   (1) row[0..n-1] are kept, n <= buffer.
 *   (2) The numbers of a repetition come from Philox with a key from the seed (or
 *       from the iterator's seed, worker and the place of the shuffle) and a stream
 *       from (epoch, repetition) when reshuffling, so each order can be had again.
 */
struct shuffle {
  tm_dataset ds;
  int64_t buffer;
  bool has_seed, reshuffle;
  uint64_t seed;
};

struct shuffle_cursor {
  tm_cursor c;
  tm_row *row;
  size_t n, cap;
  int64_t taken; /* elements of the input in this repetition */
  bool started;  /* rng is set for this repetition */
  bool end;      /* the input ended */
  uint64_t repetition;
  uint64_t place; /* which shuffle of the dataset */
  tm_rng rng;
};

static void shuffle_pack(const tm_dataset *ds, tm_packer *w, tm_err *err) {
  const struct shuffle *h = (const struct shuffle *)ds;
  (void)err;
  tm_pack_array(w, 4);
  tm_pack_int(w, h->buffer);
  tm_pack_bool(w, h->has_seed);
  tm_pack_uint(w, h->seed);
  tm_pack_bool(w, h->reshuffle);
}

static tm_status shuffle_unpack(tm_unpacker *r, tm_dataset **in, int32_t nin,
                                tm_dataset **out, tm_err *err) {
  (void)nin;
  tm_unpack_array(r, 4, 4);
  int64_t buffer = tm_unpack_int(r);
  bool has_seed = tm_unpack_bool(r);
  uint64_t seed = tm_unpack_uint(r);
  bool reshuffle = tm_unpack_bool(r);
  return tm_data_shuffle(in[0], buffer, has_seed, seed, reshuffle, out, err);
}

static tm_status shuffle_open(tm_cursor *c, tm_err *err) {
  (void)err;
  ((struct shuffle_cursor *)c)->place = c->env->shuffles++;
  return TM_OK;
}

static void shuffle_start(struct shuffle_cursor *k) {
  const struct shuffle *h = (const struct shuffle *)k->c.ds;
  const tm_cursor_env *e = k->c.env;
  uint64_t key = h->has_seed ? h->seed : e->base ^ tm_mix64(k->place + 1);
  uint64_t stream = h->reshuffle ? tm_mix64(e->env.epoch + 1) ^ (k->repetition + 1) : 0;
  tm_rng_init(&k->rng, key, stream);
  k->started = true;
}

static tm_status shuffle_room(struct shuffle_cursor *k, int64_t buffer, tm_err *err) {
  if (k->n < k->cap) return TM_OK;
  size_t cap = k->cap ? 2 * k->cap : 64;
  if (cap > (uint64_t)buffer) cap = (size_t)buffer;
  void *p = tm_realloc(k->row, k->cap * sizeof *k->row, cap * sizeof *k->row);
  if (!p) return tm_nomem(err, "shuffle");
  k->row = p;
  k->cap = cap;
  return TM_OK;
}

/* Fill the buffer as far as the input goes. */
static tm_status shuffle_fill(struct shuffle_cursor *k, tm_err *err) {
  int64_t buffer = ((const struct shuffle *)k->c.ds)->buffer;
  while (!k->end && k->n < (uint64_t)buffer) {
    if (tm_cancelled(k->c.cancel))
      return tm_fail(err, TM_ECANCELLED, "shuffle: cancelled");
    TM_TRY(shuffle_room(k, buffer, err));
    tm_status s = tm_cursor_next(k->c.in[0], &k->row[k->n], err);
    if (s == TM_ERANGE)
      k->end = true;
    else if (s != TM_OK)
      return s;
    else
      k->n++, k->taken++;
  }
  return TM_OK;
}

static tm_status shuffle_next(tm_cursor *c, tm_row *out, tm_err *err) {
  struct shuffle_cursor *k = (struct shuffle_cursor *)c;
  if (!k->started) shuffle_start(k);
  TM_TRY(shuffle_fill(k, err));
  if (k->n == 0) return TM_ERANGE;
  size_t i = (size_t)tm_rng_below(&k->rng, k->n);
  *out = k->row[i];
  k->row[i] = k->row[--k->n];
  return TM_OK;
}

/* --- passing --- */

static void shuffle_drop(struct shuffle_cursor *k) {
  while (k->n > 0) tm_row_release(&k->row[--k->n]);
}

enum { SHUFFLE_FEW = 8 };

/* Draws without rows: slot[i] is the element of the input (from 0, counted from now)
 * that would be in the buffer, -1 - j for row j that is in it. */
struct shuffle_slot {
  int64_t element;
  size_t place;
};

static int slot_compare(const void *a, const void *b) {
  int64_t x = ((const struct shuffle_slot *)a)->element;
  int64_t y = ((const struct shuffle_slot *)b)->element;
  return (x > y) - (x < y);
}

/* n draws; the slots that are left, *next elements of the input are used up; *end: it
 * would have been asked for one more than it has. */
static size_t shuffle_draw(struct shuffle_cursor *k, int64_t n, int64_t left,
                           size_t room, struct shuffle_slot *slot, int64_t *next,
                           bool *end) {
  uint64_t buffer = (uint64_t)((const struct shuffle *)k->c.ds)->buffer;
  size_t m = k->n;
  for (size_t i = 0; i < m; i++) slot[i].element = -1 - (int64_t)i;
  for (*next = 0; n > 0; n--) {
    while (m < room && *next < left) slot[m++].element = (*next)++;
    *end = m < buffer;
    size_t i = (size_t)tm_rng_below(&k->rng, m);
    slot[i] = slot[--m];
  }
  for (size_t i = 0; i < m; i++) slot[i].place = i;
  return m;
}

/* Rows for the m slots, in the order of the input; `next` elements of it are used up.
 */
static tm_status shuffle_settle(struct shuffle_cursor *k, struct shuffle_slot *slot,
                                size_t m, tm_row *row, int64_t next, tm_err *err) {
  int64_t at = 0, d;
  qsort(slot, m, sizeof *slot, slot_compare);
  for (size_t i = 0; i < m; i++) {
    int64_t e = slot[i].element;
    tm_row *to = &row[slot[i].place];
    if (e < 0) {
      *to = k->row[-1 - e];
      k->row[-1 - e] = (tm_row){NULL, 0};
      continue;
    }
    TM_TRY(tm_cursor_pass(k->c.in[0], e - at, &d, err));
    TM_TRY(tm_cursor_next(k->c.in[0], to, err));
    at = e + 1;
  }
  return tm_cursor_pass(k->c.in[0], next - at, &d, err);
}

/* The input gives `left` more elements, then its end, which it has to be asked for. */
static tm_status shuffle_to_end(struct shuffle_cursor *k, int64_t left, tm_err *err) {
  int64_t d;
  tm_status s = tm_cursor_pass(k->c.in[0], left, &d, err);
  if (s == TM_OK) s = tm_cursor_walk(k->c.in[0], 1, &d, err);
  return s == TM_ERANGE ? TM_OK : s;
}

/* n draws, and after them only the rows that are in the buffer then. */
static tm_status shuffle_jump(struct shuffle_cursor *k, int64_t n, int64_t left,
                              tm_err *err) {
  int64_t buffer = ((const struct shuffle *)k->c.ds)->buffer, next = 0;
  size_t room = (size_t)buffer;
  if (left < buffer && k->n + (uint64_t)left < room) room = k->n + (size_t)left;
  struct shuffle_slot *slot = tm_calloc(room, sizeof *slot);
  tm_row *row = tm_calloc(room, sizeof *row);
  tm_status s = slot && row ? TM_OK : tm_nomem(err, "shuffle");
  size_t m = 0;
  if (s == TM_OK) {
    m = shuffle_draw(k, n, left, room, slot, &next, &k->end);
    s = shuffle_settle(k, slot, m, row, next, err);
    if (s == TM_OK && k->end) s = shuffle_to_end(k, 0, err);
  }
  tm_free(slot, room * sizeof *slot);
  for (size_t i = 0; i < k->n; i++) tm_row_release(&k->row[i]);
  tm_free(k->row, k->cap * sizeof *k->row);
  k->row = row; /* after a failure some are empty, which close copes with */
  k->n = m;
  k->cap = row ? room : 0;
  k->taken += next;
  return s;
}

static tm_status shuffle_pass(tm_cursor *c, int64_t n, int64_t *done, tm_err *err) {
  struct shuffle_cursor *k = (struct shuffle_cursor *)c;
  int64_t card = c->ds->in[0]->card;
  int64_t buffer = ((const struct shuffle *)c->ds)->buffer;
  /* A jump costs as much as the buffer is large; a few elements enter it either way. */
  if (card == TM_DATA_UNKNOWN || n < buffer / SHUFFLE_FEW)
    return tm_cursor_walk(c, n, done, err);
  if (!k->started) shuffle_start(k);
  int64_t left = card == TM_DATA_INFINITE ? INT64_MAX : card - k->taken;
  if (k->end) left = 0;
  if (left > n - (int64_t)k->n) { /* not to the end of this repetition */
    *done = n;
    return shuffle_jump(k, n, left, err);
  }
  *done = (int64_t)k->n + left;
  shuffle_drop(k);
  k->end = true;
  tm_status s = shuffle_to_end(k, left, err);
  return s == TM_OK && *done < n ? TM_ERANGE : s;
}

static void shuffle_reset(tm_cursor *c, bool fresh) {
  struct shuffle_cursor *k = (struct shuffle_cursor *)c;
  shuffle_drop(k);
  k->started = k->end = false;
  k->taken = 0;
  k->repetition = fresh ? 0 : k->repetition + 1;
  tm_cursor_reset(c->in[0], fresh);
}

static void shuffle_close(tm_cursor *c) {
  struct shuffle_cursor *k = (struct shuffle_cursor *)c;
  shuffle_drop(k);
  if (k->cap) tm_free(k->row, k->cap * sizeof *k->row);
}

const tm_data_class tm_class_shuffle = {
    .name = "shuffle",
    .code = 12,
    .nin = 1,
    .same = true,
    .size = sizeof(struct shuffle),
    .cursor_size = sizeof(struct shuffle_cursor),
    .pack = shuffle_pack,
    .unpack = shuffle_unpack,
    .open = shuffle_open,
    .next = shuffle_next,
    .pass = shuffle_pass,
    .reset = shuffle_reset,
    .close = shuffle_close,
};

tm_status tm_data_shuffle(tm_dataset *in, int64_t buffer, bool has_seed, uint64_t seed,
                          bool reshuffle, tm_dataset **out, tm_err *err) {
  *out = NULL;
  if (buffer < 1)
    return tm_fail(err, TM_EINVAL, "shuffle: buffer is %lld, must be at least 1",
                   (long long)buffer);
  TM_TRY(tm_dataset_like(&tm_class_shuffle, in, out, err));
  struct shuffle *h = (struct shuffle *)*out;
  h->buffer = buffer;
  h->has_seed = has_seed;
  h->seed = has_seed ? seed : 0;
  h->reshuffle = reshuffle;
  return TM_OK;
}
