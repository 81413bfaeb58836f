#include <inttypes.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "cluster/coord_parts.h"

/*
 * Design.  A closure whose argument is the result of one that is not done waits apart,
 * in the list of that closure's number; it is in one list at a time, that of the first
 * argument that is missing.  When all are there it takes its place in the queue, which
 * is by number, so it runs before what was scheduled after it.
 *
 * Invariants:
 *   (1) What a closure waits for has a lower number and is not finished.  So the lowest
 *       unfinished closure never waits apart, and waiting cannot lock up.
 *   (2) `napart` is the number of closures in all lists.
 */
void coord_wants_free(coord_item *it) {
  for (int32_t i = 0; i < it->nwant; i++) tm_remote_value_unref(it->want[i].value);
  tm_free(it->want, (size_t)it->nwant * sizeof *it->want);
  it->want = NULL;
  it->nwant = 0;
}

static bool args_is_result(const tm_carg *a) {
  return a->kind == TM_CARG_REMOTE || a->kind == TM_CARG_AFTER;
}

tm_status coord_args_check(const tm_coordinator *c, const tm_carg *arg, int32_t narg,
                           tm_err *err) {
  for (int32_t i = 0; i < narg; i++)
    if (args_is_result(&arg[i]) && !tm_remote_value_done(arg[i].value) &&
        tm_remote_value_hub(arg[i].value) != c->hub)
      return tm_fail(err, TM_EINVAL,
                     "argument %s is a result of another coordinator: fetch it first",
                     arg[i].name);
  return TM_OK;
}

tm_status coord_wants_take(coord_item *it, const tm_carg *arg, int32_t narg) {
  int32_t n = 0;
  for (int32_t i = 0; i < narg; i++) n += args_is_result(&arg[i]);
  if (n == 0) return TM_OK;
  it->want = tm_calloc((size_t)n, sizeof *it->want);
  if (!it->want) return TM_ENOMEM;
  it->nwant = n;
  coord_want *w = it->want;
  for (int32_t i = 0; i < narg; i++) {
    if (!args_is_result(&arg[i])) continue;
    bool after = arg[i].kind == TM_CARG_AFTER;
    *w = (coord_want){.arg = after ? -1 : i, .out = arg[i].out};
    w->value = tm_remote_value_ref(arg[i].value);
    strncpy(w->name, arg[i].name ? arg[i].name : "", sizeof w->name - 1);
    w++;
  }
  return TM_OK;
}

/* --- settling --- */

static tm_status want_take(coord_item *it, const coord_want *w, tm_err *err) {
  tm_tensor **out;
  int32_t n;
  tm_err theirs;
  tm_err_clear(&theirs);
  tm_status s = tm_remote_value_wait(w->value, 0, NULL, &out, &n, &theirs);
  if (s == TM_OK && w->arg < 0) return TM_OK;
  if (s == TM_OK && w->out < n) {
    it->arg[w->arg].t = tm_tensor_ref(out[w->out]);
    return TM_OK;
  }
  if (s == TM_OK) {
    s = TM_EINVAL;
    tm_fail(&theirs, s, "it has %d results", n);
  }
  *err = theirs;
  err->step = (int64_t)it->id;
  tm_fail(err, s, "argument %s failed: %s", w->name, theirs.msg);
  return s;
}

typedef enum settled {
  SETTLED_READY,
  SETTLED_APART,
  SETTLED_ENDED, /* there was no data left for what it waits for */
  SETTLED_FAILED
} settled;

/* Take what is there, wait for the first that is not. */
static settled args_settle(tm_coordinator *c, coord_item *it, tm_err *err) {
  for (int32_t i = 0; i < it->nwant; i++) {
    coord_want *w = &it->want[i];
    if (w->arg >= 0 && it->arg[w->arg].t) continue;
    if (!tm_remote_value_done(w->value)) {
      uint64_t id = tm_remote_value_step(w->value);
      it->next = tm_map_get(c->apart, id);
      if (tm_map_put(c->apart, id, it) == TM_OK) {
        c->napart++;
        return SETTLED_APART;
      }
      tm_nomem(err, "a closure that waits");
      return SETTLED_FAILED;
    }
    if (tm_remote_value_ended(w->value)) return SETTLED_ENDED;
    if (want_take(it, w, err)) return SETTLED_FAILED;
  }
  coord_wants_free(it);
  return SETTLED_READY;
}

/* The list of those that wait for `id`, put before `to`. */
static void args_woken(tm_coordinator *c, uint64_t id, coord_item **to) {
  coord_item *it = tm_map_count(c->apart) ? tm_map_del(c->apart, id) : NULL;
  if (!it) return;
  coord_item *rest = *to;
  *to = it;
  for (c->napart--; it->next; it = it->next) c->napart--;
  it->next = rest;
}

/* One closure that may go on; those that wait for it, when it fails, are added. */
static void args_step(tm_coordinator *c, coord_item *it, coord_item **todo) {
  tm_err err;
  tm_err_clear(&err);
  it->next = NULL;
  switch (args_settle(c, it, &err)) {
    case SETTLED_READY:
      coord_requeue(c, it);
      return;
    case SETTLED_APART:
      return;
    case SETTLED_ENDED:
      if (it->value) tm_remote_value_end(it->value);
      break;
    default:
      if (it->value) tm_remote_value_fail(it->value, &err);
      coord_note_failure(c, &err);
  }
  args_woken(c, it->id, todo);
  coord_item_free(it);
}

static void args_run(tm_coordinator *c, coord_item *todo) {
  while (todo) {
    coord_item *it = todo;
    todo = it->next;
    args_step(c, it, &todo);
  }
}

void coord_args_enter(tm_coordinator *c, coord_item *it) {
  if (it->nwant == 0) {
    coord_requeue(c, it);
    return;
  }
  it->next = NULL;
  args_run(c, it);
}

void coord_args_done(tm_coordinator *c, uint64_t id) {
  coord_item *todo = NULL;
  bool failed = c->failed;
  if (c->napart == 0) return;
  args_woken(c, id, &todo);
  args_run(c, todo);
  if (c->failed && !failed) coord_fail(c, &c->failure);
}

void coord_args_cancel(tm_coordinator *c) {
  size_t pos = 0;
  uint64_t id;
  while (c->napart && tm_map_next(c->apart, &pos, &id, NULL, NULL, NULL)) {
    coord_item *it = NULL;
    args_woken(c, id, &it);
    for (coord_item *next; it; it = next) {
      next = it->next;
      coord_cancel_item(c, it);
    }
    pos = 0;
  }
}
