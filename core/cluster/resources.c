#include "cluster/resources.h"

#include <pthread.h>
#include <string.h>

#include "base/check.h"
#include "base/map.h"
#include "base/mem.h"

/*
 * Design.  An entry has an iterator and two bounded lists: `given`, what was handed out
 * since mark, and `back`, what a rollback returned (given out first by later calls).
 *
 * Invariants:
 *   (1) Only the compute thread touches an entry's lists and iterator while it is busy;
 *       `mu` guards the map and the flags.  An entry deleted while busy is freed by the
 *       compute thread, so del never waits.
 *   (2) given is only filled between mark and commit or rollback, and back has room for
 *       all of it, so a rollback cannot fail.
 *   (3) An entry that was dealt to once is read by number alone (data/element.c).
 */
enum { RES_MAX_GIVEN = 4096 };

typedef struct res_element {
  tm_tensor **t;
  int32_t n;
} res_element;

typedef struct res_list {
  res_element *e;
  int32_t n, cap;
} res_list;

typedef struct res_entry {
  tm_iter *it; /* NULL: it could not be made: */
  tm_err why;
  tm_iter_place took; /* since tm_resources_took */
  bool busy, dead;    /* guarded by mu */
  res_list given, back;
  tm_deal deal; /* what is left of the last deal */
  int32_t dealt;
  bool by_number, end;
} res_entry;

struct tm_resources {
  pthread_mutex_t mu;
  tm_map *by_uid;
  bool marking;
};

static void res_element_release(res_element *e) {
  for (int32_t i = 0; i < e->n; i++) tm_tensor_unref(e->t[i]);
  tm_free(e->t, (size_t)e->n * sizeof *e->t);
}

static void res_list_clear(res_list *l) {
  for (int32_t i = 0; i < l->n; i++) res_element_release(&l->e[i]);
  l->n = 0;
}

static void res_list_release(res_list *l) {
  res_list_clear(l);
  tm_free(l->e, (size_t)l->cap * sizeof *l->e);
}

/* Room for n elements. */
static tm_status res_list_room(res_list *l, int32_t n) {
  if (n <= l->cap) return TM_OK;
  int32_t cap = l->cap ? 2 * l->cap : 4;
  if (cap < n) cap = n;
  void *p = tm_realloc(l->e, (size_t)l->cap * sizeof *l->e, (size_t)cap * sizeof *l->e);
  if (!p) return TM_ENOMEM;
  l->e = p;
  l->cap = cap;
  return TM_OK;
}

static void res_entry_free(res_entry *e) {
  if (!e) return;
  res_list_release(&e->given);
  res_list_release(&e->back);
  tm_iter_free(e->it);
  tm_free(e, sizeof *e);
}

tm_status tm_resources_new(tm_resources **out) {
  *out = NULL;
  tm_resources *r = tm_calloc(1, sizeof *r);
  if (!r) return TM_ENOMEM;
  if (tm_map_new(&r->by_uid)) {
    tm_free(r, sizeof *r);
    return TM_ENOMEM;
  }
  pthread_mutex_init(&r->mu, NULL);
  *out = r;
  return TM_OK;
}

void tm_resources_free(tm_resources *r) {
  if (!r) return;
  size_t pos = 0;
  void *e;
  while (tm_map_next(r->by_uid, &pos, NULL, NULL, NULL, &e)) res_entry_free(e);
  tm_map_free(r->by_uid);
  pthread_mutex_destroy(&r->mu);
  tm_free(r, sizeof *r);
}

tm_status tm_resources_add(tm_resources *r, uint64_t uid, tm_iter *it,
                           const tm_err *why) {
  res_entry *e = tm_calloc(1, sizeof *e);
  if (!e) return TM_ENOMEM;
  e->it = it;
  if (!it) e->why = *why;
  pthread_mutex_lock(&r->mu);
  tm_status s = tm_map_get(r->by_uid, uid) ? TM_EEXISTS : tm_map_put(r->by_uid, uid, e);
  pthread_mutex_unlock(&r->mu);
  if (s) tm_free(e, sizeof *e); /* the iterator stays the caller's */
  return s;
}

void tm_resources_del(tm_resources *r, uint64_t uid) {
  pthread_mutex_lock(&r->mu);
  res_entry *e = tm_map_del(r->by_uid, uid);
  bool later = e && e->busy;
  if (later) e->dead = true;
  pthread_mutex_unlock(&r->mu);
  if (!later) res_entry_free(e);
}

static res_entry *res_take(tm_resources *r, uint64_t uid) {
  pthread_mutex_lock(&r->mu);
  res_entry *e = tm_map_get(r->by_uid, uid);
  if (e) e->busy = true;
  pthread_mutex_unlock(&r->mu);
  return e;
}

static void res_put(tm_resources *r, res_entry *e) {
  pthread_mutex_lock(&r->mu);
  e->busy = false;
  bool dead = e->dead;
  pthread_mutex_unlock(&r->mu);
  if (dead) res_entry_free(e);
}

/* Remember what was given.  Only a closure with more than RES_MAX_GIVEN unconditional
 * nexts finds the list full. */
static tm_status res_remember(res_entry *e, tm_tensor *const *t, int32_t n) {
  if (e->given.n == RES_MAX_GIVEN) return TM_EEXHAUSTED;
  TM_TRY(res_list_room(&e->given, e->given.n + 1));
  TM_TRY(res_list_room(&e->back, e->given.n + 1 + e->back.n));
  tm_tensor **copy = tm_malloc((size_t)n * sizeof(tm_tensor *));
  if (!copy) return TM_ENOMEM;
  for (int32_t i = 0; i < n; i++) copy[i] = tm_tensor_ref(t[i]);
  e->given.e[e->given.n++] = (res_element){copy, n};
  return TM_OK;
}

static tm_status res_dealt(res_entry *e, tm_tensor **out, tm_err *err) {
  tm_deal *d = &e->deal;
  if (d->count == 0)
    return tm_fail(err, TM_EINTERNAL,
                   "iterator: the function takes more elements than were dealt to it");
  tm_status s = tm_iter_element(e->it, d->pass, d->first, out, err);
  e->end = s == TM_ERANGE;
  TM_TRY(s);
  d->first++;
  d->count--;
  e->dealt++;
  return TM_OK;
}

static tm_status res_next(tm_resources *r, res_entry *e, tm_tensor **out, int32_t n,
                          tm_err *err) {
  if (!e->it) {
    if (err) *err = e->why;
    return tm_err_prefix(err, e->why.code,
                         "a resource of this worker could not be built");
  }
  int32_t width = tm_dataset_width(tm_iter_dataset(e->it));
  if (n != width)
    return tm_fail(err, TM_EINVAL,
                   "iterator: the function expects elements of %d tensors, the dataset "
                   "has %d",
                   n, width);
  if (e->by_number) return res_dealt(e, out, err);
  if (e->back.n) {
    res_element el = e->back.e[0];
    memmove(e->back.e, e->back.e + 1, (size_t)--e->back.n * sizeof *e->back.e);
    memcpy(out, el.t, (size_t)n * sizeof *out);
    tm_free(el.t, (size_t)el.n * sizeof *el.t);
  } else {
    tm_status got = tm_iter_next(e->it, out, err);
    if (got && got != TM_ERANGE && got != TM_ECANCELLED) e->took.failed++;
    TM_TRY(got);
  }
  if (!r->marking) {
    e->took.given++;
    return TM_OK;
  }
  tm_status s = res_remember(e, out, n);
  if (s == TM_OK) return TM_OK;
  for (int32_t i = 0; i < n; i++) tm_tensor_unref(out[i]);
  return tm_fail(err, s, "iterator: more than %d elements taken by one closure",
                 RES_MAX_GIVEN);
}

static tm_status res_unknown(tm_err *err) {
  return tm_fail(err, TM_ENOTFOUND,
                 "iterator: this task has no such iterator (was its coordinator "
                 "closed, or is it of another one?)");
}

void tm_resources_deal(tm_resources *r, uint64_t uid, const tm_deal *d) {
  pthread_mutex_lock(&r->mu);
  res_entry *e = tm_map_get(r->by_uid, uid);
  if (e) {
    e->deal = *d;
    e->dealt = 0;
    e->by_number = true;
    e->end = false;
  }
  pthread_mutex_unlock(&r->mu);
}

int32_t tm_resources_dealt(tm_resources *r, uint64_t uid, bool *end) {
  int32_t n = 0;
  pthread_mutex_lock(&r->mu);
  const res_entry *e = tm_map_get(r->by_uid, uid);
  *end = e && e->end;
  if (e) n = e->dealt;
  pthread_mutex_unlock(&r->mu);
  return n;
}

tm_iter_place tm_resources_took(tm_resources *r, uint64_t uid) {
  tm_iter_place p = {0, 0};
  pthread_mutex_lock(&r->mu);
  res_entry *e = tm_map_get(r->by_uid, uid);
  if (e) {
    p = e->took;
    e->took = (tm_iter_place){0, 0};
  }
  pthread_mutex_unlock(&r->mu);
  return p;
}

tm_status tm_resources_save(tm_resources *r, uint64_t uid, tm_buf *out, tm_err *err) {
  res_entry *e = res_take(r, uid);
  if (!e) return res_unknown(err);
  tm_status s = tm_iter_save(e->it, out, err);
  res_put(r, e);
  return s;
}

tm_status tm_resources_restore(tm_resources *r, uint64_t uid, const char *p, size_t n,
                               tm_err *err) {
  res_entry *e = res_take(r, uid);
  if (!e) return res_unknown(err);
  tm_status s = tm_iter_restore(e->it, p, n, err);
  if (s == TM_OK) {
    res_list_clear(&e->back); /* they were of the place before */
    s = tm_iter_settle(e->it, err);
  }
  res_put(r, e);
  return s;
}

tm_status tm_resources_next(tm_resources *r, uint64_t uid, tm_tensor **out, int32_t n,
                            tm_err *err) {
  res_entry *e = res_take(r, uid);
  if (!e) return res_unknown(err);
  tm_status s = res_next(r, e, out, n, err);
  res_put(r, e);
  return s;
}

void tm_resources_mark(tm_resources *r) {
  TM_DCHECK(!r->marking);
  r->marking = true;
}

static void res_end(tm_resources *r, bool back) {
  size_t pos = 0;
  void *p;
  r->marking = false;
  pthread_mutex_lock(&r->mu);
  while (tm_map_next(r->by_uid, &pos, NULL, NULL, NULL, &p)) {
    res_entry *e = p;
    if (back && e->given.n) {
      memmove(e->back.e + e->given.n, e->back.e, (size_t)e->back.n * sizeof *e->back.e);
      memcpy(e->back.e, e->given.e, (size_t)e->given.n * sizeof *e->back.e);
      e->back.n += e->given.n;
      e->given.n = 0;
    }
    e->took.given += e->given.n;
    res_list_clear(&e->given);
  }
  pthread_mutex_unlock(&r->mu);
}

void tm_resources_commit(tm_resources *r) { res_end(r, false); }
void tm_resources_rollback(tm_resources *r) { res_end(r, true); }
