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
  bool started; /* rng is set for this repetition */
  bool end;     /* the input ended */
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
      k->n++;
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

static void shuffle_drop(struct shuffle_cursor *k) {
  while (k->n > 0) tm_row_release(&k->row[--k->n]);
}

static void shuffle_reset(tm_cursor *c, bool fresh) {
  struct shuffle_cursor *k = (struct shuffle_cursor *)c;
  shuffle_drop(k);
  k->started = k->end = false;
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
