#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "data/node.h"

/*
 * Design.  The order of elements depends on nothing but the dataset, the seed, the
 * worker and the epoch, so a place in it is a number.  A state is one line of text:
 *
 *     tidemill iterator 1 seed=HEX worker=N epoch=N given=N failed=N of NAME:HEX ...
 *
 * behind `of` one word a node of the dataset, inputs first: its kind, and a mark of
 * what it was made from.
 *
 * Invariants:
 *   (1) Where no element failed none fails on the way back, so cursors may be passed
 *       without running what cannot change the order.  Where one did the way is walked:
 *       a failed element takes the rest of its batch with it.
 *   (2) A way that was not made to its end is begun anew with new cursors.
 */
enum { PLACE_STATE = 1 << 20 };
static const char place_word[] = "tidemill iterator 1 ";

/* --- the way to a place --- */

tm_status tm_iter_fresh(tm_iter *it, tm_err *err) {
  it->env.shuffles = it->env.maps = 0;
  tm_cursor *root;
  TM_TRY(tm_cursor_new(it->ds, &it->env, it->env.env.cancel, &root, err));
  tm_cursor_free(it->root);
  it->root = root;
  return TM_OK;
}

tm_status tm_iter_seek(tm_iter *it, tm_iter_place to, tm_err *err) {
  if (to.given < 0 || to.failed < 0 || to.given > INT64_MAX - to.failed)
    return tm_fail(err, TM_EINVAL, "iterator: no such place");
  TM_TRY(tm_iter_fresh(it, err));
  it->place = to;
  it->behind = to.given > 0 || to.failed > 0;
  return TM_OK;
}

/* Invariant (1): by next, counting failures too. */
static tm_status place_walk(tm_iter *it, int64_t *done, tm_err *err) {
  int64_t all = it->place.given + it->place.failed, step;
  for (*done = 0; *done < all; ++*done) {
    tm_status s = tm_cursor_walk(it->root, 1, &step, err);
    if (s == TM_ERANGE || s == TM_ECANCELLED || s == TM_ENOMEM) return s;
  }
  return TM_OK;
}

tm_status tm_iter_settle(tm_iter *it, tm_err *err) {
  int64_t done;
  if (!it->behind) return TM_OK;
  tm_status s = it->place.failed
                    ? place_walk(it, &done, err)
                    : tm_cursor_pass(it->root, it->place.given, &done, err);
  if (s == TM_OK) {
    it->behind = false;
    return s;
  }
  if (s == TM_ERANGE)
    s = tm_fail(
        err, TM_EDATALOSS,
        "iterator: the data end after %lld elements, it was behind element %lld: "
        "they were more when its state was saved",
        (long long)done, (long long)it->place.given);
  tm_status again = tm_iter_fresh(it, NULL); /* (2) */
  return again == TM_OK ? s : tm_nomem(err, "an iterator");
}

/* --- marks --- */

static tm_status mark_of(const tm_dataset *ds, uint64_t *out, tm_err *err) {
  if (ds->k->mark) {
    *out = ds->k->mark(ds);
    return TM_OK;
  }
  tm_buf b = TM_BUF_INIT((size_t)1 << 30);
  tm_packer w;
  tm_pack_init(&w, &b);
  tm_pack_int(&w, ds->nin);
  if (ds->k->pack) ds->k->pack(ds, &w, err);
  *out = tm_hash64(b.data, b.len, 1);
  tm_buf_release(&b);
  return w.status == TM_OK ? TM_OK : tm_nomem(err, "a state");
}

tm_status tm_dataset_marks(const tm_dataset *ds, tm_buf *out, tm_err *err) {
  uint64_t mark;
  for (int32_t i = 0; i < ds->nin; i++) TM_TRY(tm_dataset_marks(ds->in[i], out, err));
  if (ds->k->silent) return TM_OK;
  TM_TRY(mark_of(ds, &mark, err));
  const char *gap = out->len && out->data[out->len - 1] != ' ' ? " " : "";
  tm_status s =
      tm_buf_printf(out, "%s%s:%016llx", gap, ds->k->name, (unsigned long long)mark);
  return s == TM_OK ? s : tm_nomem(err, "a state");
}

/* The next word of p..end, without spaces; false: none. */
static bool place_next_word(const char **p, const char *end, const char **w,
                            size_t *n) {
  while (*p < end && **p == ' ') ++*p;
  *w = *p;
  while (*p < end && **p != ' ') ++*p;
  *n = (size_t)(*p - *w);
  return *n > 0;
}

static size_t kind_len(const char *w, size_t n) {
  const char *colon = memchr(w, ':', n);
  return colon ? (size_t)(colon - w) : n;
}

static tm_status mark_differs(const char *a, size_t na, const char *b, size_t nb, int i,
                              tm_err *err) {
  size_t ka = kind_len(a, na), kb = kind_len(b, nb);
  if (ka == kb && ka && memcmp(a, b, ka) == 0)
    return tm_fail(
        err, TM_EINVAL,
        "the state is of another dataset: step %d, %.*s, was made from other "
        "arguments or data",
        i, (int)ka, a);
  return tm_fail(err, TM_EINVAL,
                 "the state is of another dataset: step %d is %.*s there "
                 "and %.*s here",
                 i, kb ? (int)kb : 7, kb ? b : "nothing", ka ? (int)ka : 7,
                 ka ? a : "nothing");
}

tm_status tm_dataset_check_marks(const tm_dataset *ds, const char *p, size_t n,
                                 tm_err *err) {
  tm_buf b = TM_BUF_INIT(PLACE_STATE);
  tm_status s = tm_dataset_marks(ds, &b, err);
  const char *here = (const char *)b.data, *here_end = here + b.len, *end = p + n;
  for (int i = 1; s == TM_OK; i++) {
    const char *x, *y;
    size_t nx, ny;
    bool a = place_next_word(&here, here_end, &x, &nx);
    bool c = place_next_word(&p, end, &y, &ny);
    if (!a && !c) break;
    if (nx != ny || memcmp(x, y, nx) != 0) s = mark_differs(x, nx, y, ny, i, err);
  }
  tm_buf_release(&b);
  return s;
}

/* --- states --- */

tm_status tm_iter_save(const tm_iter *it, tm_buf *out, tm_err *err) {
  const tm_iter_env *e = &it->env.env;
  tm_status s = tm_buf_printf(
      out, "%sseed=%016llx worker=%lld epoch=%llu given=%lld failed=%lld of ",
      place_word, (unsigned long long)e->seed, (long long)e->worker,
      (unsigned long long)e->epoch, (long long)it->place.given,
      (long long)it->place.failed);
  return s == TM_OK ? tm_dataset_marks(it->ds, out, err) : tm_nomem(err, "a state");
}

typedef struct place_state {
  uint64_t seed, epoch;
  int64_t worker;
  tm_iter_place place;
  const char *marks;
  size_t nmarks;
} place_state;

static bool place_number(const char **p, const char *end, const char *name, int base,
                         uint64_t *out) {
  const char *w;
  size_t n, k = strlen(name);
  char text[32], *stop;
  if (!place_next_word(p, end, &w, &n) || n <= k || n - k >= sizeof text) return false;
  if (memcmp(w, name, k) != 0) return false;
  memcpy(text, w + k, n - k);
  text[n - k] = 0;
  bool minus = text[0] == '-';
  *out = strtoull(text + minus, &stop, base);
  if (minus) *out = 0 - *out;
  return *stop == 0 && stop != text + minus;
}

static bool place_parse(const char *p, size_t n, place_state *st) {
  const char *end = p + n, *w;
  uint64_t worker, given, failed;
  size_t k = sizeof place_word - 1;
  if (n < k || n > PLACE_STATE || memcmp(p, place_word, k) != 0) return false;
  p += k;
  if (!place_number(&p, end, "seed=", 16, &st->seed) ||
      !place_number(&p, end, "worker=", 10, &worker) ||
      !place_number(&p, end, "epoch=", 10, &st->epoch) ||
      !place_number(&p, end, "given=", 10, &given) ||
      !place_number(&p, end, "failed=", 10, &failed) ||
      !place_next_word(&p, end, &w, &k) || k != 2 || memcmp(w, "of", 2) != 0)
    return false;
  st->worker = (int64_t)worker;
  st->place = (tm_iter_place){(int64_t)given, (int64_t)failed};
  st->marks = p;
  st->nmarks = (size_t)(end - p);
  return st->worker >= -1 && st->place.given >= 0 && st->place.failed >= 0;
}

tm_status tm_iter_restore(tm_iter *it, const char *p, size_t n, tm_err *err) {
  place_state st;
  if (!place_parse(p, n, &st))
    return tm_fail(err, TM_EINVAL, "this is no state of an iterator");
  TM_TRY(tm_dataset_check_marks(it->ds, st.marks, st.nmarks, err));
  tm_cursor_env before = it->env;
  it->env.env.seed = st.seed;
  it->env.env.worker = st.worker;
  it->env.env.epoch = st.epoch;
  it->env.base = tm_iter_base(&it->env.env);
  tm_status s = tm_iter_seek(it, st.place, err);
  if (s != TM_OK) it->env = before;
  return s;
}
