#include "data/iterator.h"

#include "base/map.h"
#include "base/mem.h"
#include "data/node.h"

/*
 * Design.  An iterator is a tree of cursors shaped like the dataset, and what they
 * share.  Elements travel as rows of blocks and become tensors here, at the top.
 *
 * Invariants:
 *   (1) Shuffles are numbered in the order of the tree, maps too, each by themselves:
 *       the same dataset draws the same numbers everywhere, and a prefetch, batch or
 *       take put in between changes no order.
 *   (2) The first `width` tensors of `out` are set together or not at all.
 *   (3) `place` is where the iterator is for whoever uses it; while `behind` is set the
 *       cursors are at the start and the way there is still to be made.
 */
void tm_cursor_free(tm_cursor *c) {
  if (!c) return;
  const tm_dataset *ds = c->ds;
  if (ds->k->close) ds->k->close(c);
  for (int32_t i = 0; c->in && i < ds->nin; i++) tm_cursor_free(c->in[i]);
  if (c->in) tm_free(c->in, (size_t)ds->nin * sizeof *c->in);
  tm_free(c, ds->k->cursor_size);
}

void tm_cursor_reset(tm_cursor *c, bool fresh) { c->ds->k->reset(c, fresh); }

tm_status tm_cursor_new(const tm_dataset *ds, tm_cursor_env *env, tm_cancel *cancel,
                        tm_cursor **out, tm_err *err) {
  *out = NULL;
  tm_cursor *c = tm_calloc(1, ds->k->cursor_size);
  if (!c) return tm_nomem(err, "an iterator");
  c->ds = ds;
  c->env = env;
  c->cancel = cancel;
  tm_status s = TM_OK;
  if (ds->nin) {
    c->in = tm_calloc((size_t)ds->nin, sizeof *c->in);
    if (!c->in) s = tm_nomem(err, "an iterator");
  }
  /* open comes first: a prefetch gives its inputs another cancel flag. */
  if (s == TM_OK && ds->k->open) s = ds->k->open(c, err);
  for (int32_t i = 0; s == TM_OK && i < ds->nin; i++)
    s = tm_cursor_new(ds->in[i], env, c->cancel, &c->in[i], err);
  if (s != TM_OK) {
    tm_cursor_free(c);
    return s;
  }
  *out = c;
  return TM_OK;
}

tm_status tm_cursor_walk(tm_cursor *c, int64_t n, int64_t *done, tm_err *err) {
  for (*done = 0; *done < n; ++*done) {
    tm_row r = {NULL, 0};
    if (tm_cancelled(c->cancel))
      return tm_fail(err, TM_ECANCELLED, "%s: cancelled", c->ds->k->name);
    TM_TRY(tm_cursor_next(c, &r, err));
    tm_row_release(&r);
  }
  return TM_OK;
}

tm_status tm_cursor_pass(tm_cursor *c, int64_t n, int64_t *done, tm_err *err) {
  *done = 0;
  if (n == 0) return TM_OK;
  return c->ds->k->pass ? c->ds->k->pass(c, n, done, err)
                        : tm_cursor_walk(c, n, done, err);
}

uint64_t tm_iter_base(const tm_iter_env *env) {
  return tm_mix64(env->seed ^ tm_mix64((uint64_t)env->worker + 2));
}

tm_status tm_dataset_iterate(tm_dataset *ds, const tm_iter_env *env, tm_iter **out,
                             tm_err *err) {
  *out = NULL;
  tm_iter *it = tm_calloc(1, sizeof *it);
  if (!it) return tm_nomem(err, "an iterator");
  it->ds = tm_dataset_ref(ds);
  it->env.env = *env;
  it->env.base = tm_iter_base(env);
  tm_status s = tm_cursor_new(ds, &it->env, env->cancel, &it->root, err);
  if (s != TM_OK) {
    tm_iter_free(it);
    return s;
  }
  *out = it;
  return TM_OK;
}

tm_status tm_iter_next(tm_iter *it, tm_tensor **out, tm_err *err) {
  if (tm_cancelled(it->env.env.cancel))
    return tm_fail(err, TM_ECANCELLED, "iterator: cancelled");
  TM_TRY(tm_iter_settle(it, err));
  tm_row r = {NULL, 0};
  tm_status s = tm_cursor_next(it->root, &r, err);
  if (s == TM_ERANGE) return tm_fail(err, s, "iterator: the data ended");
  if (s != TM_OK && s != TM_ECANCELLED) it->place.failed++;
  if (s != TM_OK) return s;
  int32_t k = 0;
  for (; s == TM_OK && k < it->ds->width; k++) s = tm_row_tensor(&r, k, &out[k]);
  tm_row_release(&r);
  if (s == TM_OK) {
    it->place.given++;
    return TM_OK;
  }
  for (k--; k-- > 0;) { /* the last one failed */
    tm_tensor_unref(out[k]);
    out[k] = NULL;
  }
  return tm_nomem(err, "an element");
}

tm_status tm_iter_reset(tm_iter *it, tm_err *err) {
  (void)err;
  tm_cursor_reset(it->root, true); /* no thread of ours runs after this */
  it->env.env.epoch++;
  it->place = (tm_iter_place){0, 0};
  it->behind = false;
  return TM_OK;
}

const tm_dataset *tm_iter_dataset(const tm_iter *it) { return it->ds; }

int64_t tm_iter_position(const tm_iter *it) { return it->place.given; }

void tm_iter_free(tm_iter *it) {
  if (!it) return;
  tm_cursor_free(it->root);
  tm_dataset_unref(it->ds);
  tm_free(it, sizeof *it);
}
