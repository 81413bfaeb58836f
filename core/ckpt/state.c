#include "ckpt/state.h"

#include <jansson.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "ckpt/file.h"
#include "ckpt/sealed.h"

/* Design.  { "latest": name, "checkpoints": [{ "name", "time" }], "preserved": time }
 */

enum { STATE_MAX = 1000000 };

void tm_ckpt_state_release(tm_ckpt_state *s) {
  for (size_t i = 0; i < s->n; i++) tm_strfree(s->item[i].name);
  tm_free(s->item, s->cap * sizeof *s->item);
  tm_strfree(s->latest);
  memset(s, 0, sizeof *s);
}

static tm_status state_room(tm_ckpt_state *s, tm_err *err) {
  if (s->n < s->cap) return TM_OK;
  if (s->n >= STATE_MAX)
    return tm_fail(err, TM_EEXHAUSTED, "a directory lists at most %d checkpoints",
                   STATE_MAX);
  size_t cap = s->cap ? 2 * s->cap : 8;
  void *p = tm_realloc(s->item, s->cap * sizeof *s->item, cap * sizeof *s->item);
  if (!p) return tm_nomem(err, "a list of checkpoints");
  s->item = p;
  s->cap = cap;
  return TM_OK;
}

tm_status tm_ckpt_state_add(tm_ckpt_state *s, const char *name, double time,
                            tm_err *err) {
  if (!tm_path_is_name(name))
    return tm_fail(err, TM_EINVAL, "\"%.200s\" is no name of a checkpoint", name);
  TM_TRY(state_room(s, err));
  char *latest = tm_strdup(name), *copy = tm_strdup(name);
  if (!latest || !copy) {
    tm_strfree(latest);
    tm_strfree(copy);
    return tm_nomem(err, "a list of checkpoints");
  }
  tm_strfree(s->latest);
  s->latest = latest;
  s->item[s->n].name = copy;
  s->item[s->n++].time = time;
  return TM_OK;
}

tm_status tm_ckpt_state_write(const char *dir, const tm_ckpt_state *s, tm_err *err) {
  json_t *root = json_pack("{s:s?, s:[], s:f}", "latest", s->latest, "checkpoints",
                           "preserved", s->preserved);
  json_t *list = json_object_get(root, "checkpoints");
  tm_status st = root ? TM_OK : tm_nomem(err, dir);
  for (size_t i = 0; st == TM_OK && i < s->n; i++) {
    json_t *o =
        json_pack("{s:s, s:f}", "name", s->item[i].name, "time", s->item[i].time);
    if (!o)
      st = tm_fail(err, TM_EINVAL, "a checkpoint's name is not UTF-8: \"%.200s\"",
                   s->item[i].name);
    else if (json_array_append_new(list, o))
      st = tm_nomem(err, dir);
  }
  if (st == TM_OK) st = tm_sealed_write(dir, TM_CKPT_STATE, root, err);
  json_decref(root);
  return st;
}

static tm_status state_fill(const char *dir, json_t *root, tm_ckpt_state *s,
                            tm_err *err) {
  const char *latest = json_string_value(json_object_get(root, "latest"));
  json_t *list = json_object_get(root, "checkpoints");
  s->preserved = json_number_value(json_object_get(root, "preserved"));
  for (size_t i = 0; i < json_array_size(list); i++) {
    json_t *o = json_array_get(list, i);
    const char *name = json_string_value(json_object_get(o, "name"));
    if (!name || !tm_path_is_name(name))
      return tm_fail(err, TM_EDATALOSS, "\"%.300s/" TM_CKPT_STATE "\": no name in it",
                     dir);
    TM_TRY(
        tm_ckpt_state_add(s, name, json_number_value(json_object_get(o, "time")), err));
  }
  if (!latest || (s->latest && strcmp(latest, s->latest) == 0)) return TM_OK;
  return tm_fail(err, TM_EDATALOSS,
                 "\"%.300s/" TM_CKPT_STATE "\": the latest is not the last of the list",
                 dir);
}

tm_status tm_ckpt_state_read(const char *dir, tm_ckpt_state *s, tm_err *err) {
  json_t *root;
  memset(s, 0, sizeof *s);
  TM_TRY(tm_sealed_read(dir, TM_CKPT_STATE, &root, err));
  tm_status st = state_fill(dir, root, s, err);
  json_decref(root);
  if (st) tm_ckpt_state_release(s);
  return st;
}

/* --- changing --- */

#define STATE_LOCK_SECONDS 30.0

static bool state_leaves(const tm_ckpt_change *c, const char *name) {
  if (c->add && strcmp(c->add, name) == 0) return true;
  for (size_t i = 0; i < c->ngone; i++)
    if (strcmp(c->gone[i], name) == 0) return true;
  return false;
}

static tm_status state_merge(const tm_ckpt_state *old, const tm_ckpt_change *c,
                             tm_ckpt_state *out, tm_err *err) {
  /* A list that is full loses its oldest name, not its newest. */
  size_t skip = old->n >= STATE_MAX ? old->n - STATE_MAX + 1 : 0;
  for (size_t i = skip; i < old->n; i++)
    if (!state_leaves(c, old->item[i].name))
      TM_TRY(tm_ckpt_state_add(out, old->item[i].name, old->item[i].time, err));
  if (c->add) TM_TRY(tm_ckpt_state_add(out, c->add, c->time, err));
  out->preserved = c->preserved > 0 ? c->preserved : old->preserved;
  return TM_OK;
}

static tm_status state_change(const char *dir, const tm_ckpt_change *c,
                              tm_ckpt_state *out, tm_err *err) {
  tm_ckpt_state old;
  tm_status st = tm_ckpt_state_read(dir, &old, err);
  /* A list that cannot be read is replaced: the new checkpoint must be found. */
  if (st == TM_ENOTFOUND || st == TM_EDATALOSS) st = TM_OK;
  if (st == TM_OK) st = state_merge(&old, c, out, err);
  tm_ckpt_state_release(&old);
  return st == TM_OK ? tm_ckpt_state_write(dir, out, err) : st;
}

tm_status tm_ckpt_state_change(const char *dir, const tm_ckpt_change *c,
                               tm_ckpt_state *out, tm_err *err) {
  int lock;
  memset(out, 0, sizeof *out);
  TM_TRY(tm_dir_lock(dir, STATE_LOCK_SECONDS, &lock, err));
  if (lock >= 0) tm_file_sweep(dir, TM_CKPT_STATE);
  tm_status st = state_change(dir, c, out, err);
  if (lock >= 0) close(lock);
  if (st) tm_ckpt_state_release(out);
  return st;
}
