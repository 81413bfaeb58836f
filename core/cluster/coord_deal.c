#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "cluster/coord_parts.h"

/*
 * Design.  Elements of a dataset have numbers, the same on every worker.  A closure
 * gets its elements when it is handed out first, k consecutive ones where its function
 * calls next k times.  One that comes back unstarted gives them up; but once a worker
 * was lost that may have done what it changes, it keeps them: a ps would pass over an
 * UPDATE of the same closure with others.  What was handed back is dealt again when all
 * else is, because a lower number costs a worker the way from the start.  Random
 * numbers go by the deal: how many closures found no data, which time decides, changes
 * none.
 *
 * Invariants:
 *   (1) Each element below `next` is done, or held by one closure (coord_item.deal), or
 *       in `back`: what is not done is known without a list of what is.
 *   (2) back is in order, its ranges do not touch, and it has room for all that is
 *       held: handing back cannot fail.
 *   (3) next <= end where the end is known.  What was dealt beyond it before it was
 *       known is held, and comes back as the end.
 *   (4) A deal of another pass than the present one counts for nothing.
 */
enum {
  DEAL_KNOWN = 1024, /* functions whose calls of next are remembered */
  DEAL_BACK = 1024   /* ranges that are handed back before they are dealt first */
};

struct coord_accounts {
  uint64_t pass;
  uint64_t draw; /* of the iterator, see accounts_draw */
  int64_t next;
  int64_t end; /* -1: not known (yet) */
  int64_t done;
  int64_t steps; /* closures of this pass that had data */
  int64_t deals; /* of all passes */
  int32_t last;  /* elements of the last deal */
  int32_t held;  /* closures */
  tm_range *back;
  int32_t nback, max_back;
  bool noted;
  tm_deals note; /* of the last checkpoint's moment */
};

tm_status coord_accounts_new(const tm_dataset *ds, coord_accounts **out, tm_err *err) {
  *out = NULL;
  if (tm_dataset_by_worker(ds))
    return tm_fail(err, TM_EINVAL,
                   "visitation = \"exactly_once\" deals the elements of one dataset to "
                   "all workers, but this one depends on the worker's index: leave out "
                   "shard by current_worker_index()");
  coord_accounts *a = *out = tm_calloc(1, sizeof *a);
  if (!a) return tm_nomem(err, "an iterator");
  int64_t n = tm_dataset_cardinality(ds);
  a->end = n >= 0 ? n : -1;
  return TM_OK;
}

void coord_accounts_draw(coord_accounts *a, uint64_t draw) { a->draw = draw; }

/* The number that a closure with this deal draws by.  (Without one they are small.) */
static uint64_t accounts_draw(const coord_accounts *a, const tm_deal *d) {
  return tm_mix64(tm_mix64(a->draw) + d->pass + 1) + (uint64_t)d->first;
}

void coord_accounts_free(coord_accounts *a) {
  if (!a) return;
  tm_free(a->back, (size_t)a->max_back * sizeof *a->back);
  tm_deals_release(&a->note);
  tm_free(a, sizeof *a);
}

/* --- what was handed back --- */

static tm_status back_room(coord_accounts *a, int32_t n) {
  if (n <= a->max_back) return TM_OK;
  int32_t max = a->max_back ? 2 * a->max_back : 16;
  if (max < n) max = n;
  void *p = tm_realloc(a->back, (size_t)a->max_back * sizeof *a->back,
                       (size_t)max * sizeof *a->back);
  if (!p) return TM_ENOMEM;
  a->back = p;
  a->max_back = max;
  return TM_OK;
}

static void back_remove(coord_accounts *a, int32_t i) {
  memmove(&a->back[i], &a->back[i + 1], (size_t)(--a->nback - i) * sizeof *a->back);
}

static void back_add(coord_accounts *a, tm_range r) {
  if (a->end >= 0 && r.first + r.n > a->end) r.n = a->end - r.first;
  if (r.n <= 0) return;
  int32_t i = a->nback;
  while (i > 0 && a->back[i - 1].first > r.first) i--;
  if (i > 0 && a->back[i - 1].first + a->back[i - 1].n == r.first) {
    a->back[--i].n += r.n;
  } else {
    memmove(&a->back[i + 1], &a->back[i], (size_t)(a->nback++ - i) * sizeof *a->back);
    a->back[i] = r;
  }
  if (i + 1 < a->nback && a->back[i].first + a->back[i].n == a->back[i + 1].first) {
    a->back[i].n += a->back[i + 1].n;
    back_remove(a, i + 1);
  }
}

static int64_t back_total(const coord_accounts *a) {
  int64_t n = 0;
  for (int32_t i = 0; i < a->nback; i++) n += a->back[i].n;
  return n;
}

/* Elements that are there for new closures; -1: not known. */
static int64_t accounts_left(const coord_accounts *a) {
  return a->end < 0 ? -1 : a->end - a->next + back_total(a);
}

/* --- dealing --- */

/* k consecutive elements that were handed back; false: there are not so many. */
static bool back_take(coord_accounts *a, int32_t k, tm_deal *out) {
  int32_t i = 0;
  while (i < a->nback && a->back[i].n < k) i++;
  if (i == a->nback) return false;
  *out = (tm_deal){a->back[i].first, k, a->pass};
  a->back[i].first += k;
  a->back[i].n -= k;
  if (a->back[i].n == 0) back_remove(a, i);
  return true;
}

/* k that were never dealt. */
static bool front_take(coord_accounts *a, int32_t k, tm_deal *out) {
  if (a->end >= 0 && a->end - a->next < k) return false;
  *out = (tm_deal){a->next, k, a->pass};
  a->next += k;
  return true;
}

/* k consecutive elements; TM_ERANGE: there are not so many. */
static tm_status accounts_take(coord_accounts *a, int32_t k, tm_deal *out) {
  TM_TRY(back_room(a, a->nback + a->held + 1));
  bool first = a->nback >= DEAL_BACK;
  if (!(first && back_take(a, k, out)) && !front_take(a, k, out) &&
      !back_take(a, k, out))
    return TM_ERANGE;
  a->held++;
  a->deals++;
  a->last = k;
  return TM_OK;
}

/* A deal of this pass comes to its end: `n` of its elements, behind `from`, go back. */
static void accounts_return(coord_accounts *a, const tm_deal *d, int64_t n) {
  a->held--;
  if (d->pass == a->pass) back_add(a, (tm_range){d->first, n});
}

static void accounts_done(coord_accounts *a, const tm_deal *d) {
  a->held--;
  if (d->pass != a->pass) return;
  a->done += d->count;
  a->steps++;
}

/* Element `end` does not exist. */
static void accounts_end(coord_accounts *a, int64_t end) {
  if (a->end >= 0 && a->end <= end) return;
  a->end = end;
  if (a->next > end) a->next = end;
  while (a->nback && a->back[a->nback - 1].first >= end) a->nback--;
  if (a->nback == 0) return;
  tm_range *last = &a->back[a->nback - 1];
  if (last->first + last->n > end) last->n = end - last->first;
}

static coord_accounts *deal_accounts(tm_coordinator *c, const coord_item *it,
                                     int32_t arg) {
  if (!it->deal[arg].count) return NULL;
  coord_resource *r = coord_resource_find(c, it->arg[arg].iterator);
  return r ? r->accounts : NULL;
}

void coord_deal_back(tm_coordinator *c, coord_item *it) {
  for (int32_t i = 0; it->dealt && i < it->narg; i++) {
    coord_accounts *a = deal_accounts(c, it, i);
    if (a) accounts_return(a, &it->deal[i], it->deal[i].count);
  }
  it->dealt = false;
}

void coord_deal_spend(tm_coordinator *c, coord_item *it) {
  for (int32_t i = 0; it->dealt && i < it->narg; i++) {
    coord_accounts *a = deal_accounts(c, it, i);
    if (a) accounts_done(a, &it->deal[i]);
  }
  it->dealt = false;
}

tm_status coord_deal_out(tm_coordinator *c, coord_item *it) {
  tm_status s = TM_OK;
  if (!it->deal || it->dealt) return TM_OK;
  it->draw = 0;
  for (int32_t i = 0; i < it->narg; i++) {
    coord_accounts *a = deal_accounts(c, it, i);
    tm_deal d;
    if (!a) continue; /* dropped meanwhile: the worker says so */
    s = accounts_take(a, it->deal[i].count, &d);
    if (s == TM_OK) {
      it->deal[i] = d;
      if (!it->draw) it->draw = accounts_draw(a, &d);
      continue;
    }
    while (i-- > 0) {
      a = deal_accounts(c, it, i);
      if (a) accounts_return(a, &it->deal[i], it->deal[i].count);
    }
    return s;
  }
  it->dealt = true;
  return TM_OK;
}

/* A closure found the data of one of its iterators to end: all that there was goes to
 * others. */
static void deal_ended(tm_coordinator *c, coord_item *it, const tm_completion *d) {
  for (int32_t i = 0, k = 0; i < it->narg && k < d->ntook; i++) {
    if (it->arg[i].t) continue;
    const tm_took *t = &d->took[k++];
    coord_accounts *a = deal_accounts(c, it, i);
    if (!a) continue;
    const tm_deal *deal = &it->deal[i];
    int64_t n = deal->count;
    if (t->failed && t->given < (uint32_t)deal->count) {
      n = t->given;
      if (deal->pass == a->pass) accounts_end(a, deal->first + n);
    }
    accounts_return(a, deal, n);
  }
  it->dealt = false;
}

static bool deal_met_end(const coord_item *it, const tm_completion *d) {
  if (d->status != TM_ERANGE || !it->dealt) return false;
  for (int32_t i = 0, k = 0; i < it->narg && k < d->ntook; i++) {
    if (it->arg[i].t) continue;
    if (it->deal[i].count && d->took[k].failed) return true;
    k++;
  }
  return false;
}

bool coord_deal_may_go(tm_coordinator *c, const coord_item *it) {
  for (int32_t i = 0; i < it->narg; i++) {
    const coord_accounts *a = deal_accounts(c, it, i);
    if (a && accounts_left(a) >= 0 && accounts_left(a) < it->deal[i].count)
      return false;
  }
  return true;
}

bool coord_deal_settle(tm_coordinator *c, coord_item *it, const tm_completion *d) {
  if (deal_met_end(it, d)) {
    deal_ended(c, it, d);
    return true;
  }
  /* One that was cancelled before it changed anything was not there; one that failed
   * would fail again. */
  if (d->status == TM_ECANCELLED && (d->count.updates == 0 || it->round))
    coord_deal_back(c, it);
  else
    coord_deal_spend(c, it);
  return false;
}

/* --- what a function takes --- */

static bool deal_calls_inside(const tm_graph *g, const tm_op *next) {
  for (int32_t i = 0; i < g->nnode; i++) {
    const tm_node *n = &g->node[i];
    for (int32_t k = 0; k < n->attrs.n; k++) {
      if (n->attrs.a[k].kind != TM_ATTR_FUNC) continue;
      const tm_graph *sub = n->attrs.a[k].u.g;
      for (int32_t j = 0; j < sub->nnode; j++)
        if (sub->node[j].op == next) return true;
      if (deal_calls_inside(sub, next)) return true;
    }
  }
  return false;
}

/* How often it calls next on an argument; -1: there are calls that may not happen. */
static int32_t deal_count_calls(const tm_graph *g, int32_t arg) {
  const tm_op *next = tm_op_find("iterator_next");
  int32_t n = 0;
  if (deal_calls_inside(g, next)) return -1;
  for (int32_t i = 0; i < g->nnode; i++)
    n += g->node[i].op == next && g->node[i].in[0].node == g->arg[arg].node;
  return n;
}

/* The same, remembered by the function's content. */
static int32_t deal_calls(tm_coordinator *c, const tm_graph *g, int32_t arg) {
  uint64_t key = g->hash[0] ^ tm_mix64((uint64_t)arg + 1);
  if (c->calls && tm_map_count(c->calls) >= DEAL_KNOWN) {
    tm_map_free(c->calls);
    c->calls = NULL;
  }
  if (!c->calls && tm_map_new(&c->calls)) c->calls = NULL;
  intptr_t known = c->calls ? (intptr_t)tm_map_get(c->calls, key) : 0;
  if (known) return (int32_t)(known - 2);
  int32_t n = deal_count_calls(g, arg);
  /* Should the note fail it is counted again. */
  if (c->calls && tm_map_put(c->calls, key, (void *)((intptr_t)n + 2))) return n;
  return n;
}

/* An iterator that is passed twice has one deal, of the first place. */
static int32_t deal_place(const coord_item *it, int32_t arg) {
  int32_t i = 0;
  while (it->arg[i].t || it->arg[i].iterator != it->arg[arg].iterator) i++;
  return i;
}

static tm_status deal_ask(tm_coordinator *c, coord_item *it, int32_t arg, int32_t nth,
                          tm_err *err) {
  int32_t n = deal_calls(c, it->graph, arg);
  if (n < 0)
    return tm_fail(
        err, TM_EINVAL,
        "%s: argument %d is an iterator with visitation = \"exactly_once\": "
        "next is called on it outside of branches and loops, so that each run "
        "takes as many elements",
        it->graph->name, arg + 1);
  if (nth >= TM_MAX_TOOK)
    return tm_fail(err, TM_EINVAL, "%s: more than %d iterators", it->graph->name,
                   (int)TM_MAX_TOOK);
  if (n == 0) return TM_OK;
  if (!it->deal) it->deal = tm_calloc((size_t)it->narg, sizeof *it->deal);
  if (!it->deal) return tm_nomem(err, "a closure");
  it->deal[deal_place(it, arg)].count += n;
  return TM_OK;
}

tm_status coord_deal_ask(tm_coordinator *c, coord_item *it, tm_err *err) {
  for (int32_t i = 0, nth = 0; i < it->narg; i++) {
    if (!it->graph->arg[i].iterator) continue;
    coord_resource *r = coord_resource_find(c, it->arg[i].iterator);
    if (r && r->accounts) TM_TRY(deal_ask(c, it, i, nth, err));
    nth++;
  }
  return TM_OK;
}

/* --- passes --- */

/* The next closure that is not finished, in any place but `apart`; NULL: no more. */
typedef struct deal_walk {
  const tm_coordinator *c;
  int32_t list; /* which is walked: four of all, then two a worker */
  coord_item *it;
} deal_walk;

static const coord_queue *walk_list(const tm_coordinator *c, int32_t i) {
  const coord_queue *all[] = {&c->queue, &c->rounds.queue, &c->rounds.done,
                              &c->rounds.ending};
  int32_t n = (int32_t)TM_COUNT(all);
  if (i < n) return all[i];
  if (i - n >= 2 * c->nworker) return NULL;
  const coord_worker *w = c->worker[(i - n) / 2];
  return (i - n) % 2 ? &w->own : &w->out;
}

static coord_item *walk_next(deal_walk *w) {
  const coord_queue *q;
  if (w->it) w->it = w->it->next;
  while (!w->it && (q = walk_list(w->c, w->list))) {
    w->it = coord_queue_head(q);
    w->list++;
  }
  return w->it;
}

static bool deal_uses(const coord_item *it, uint64_t uid) {
  for (int32_t i = 0; it->deal && i < it->narg; i++)
    if (it->deal[i].count && it->arg[i].iterator == uid) return true;
  return false;
}

static bool deal_in_use(const tm_coordinator *c, uint64_t uid) {
  deal_walk w = {c, 0, NULL};
  for (const coord_item *it; (it = walk_next(&w));)
    if (deal_uses(it, uid)) return true;
  size_t pos = 0;
  void *p;
  while (tm_map_next(c->apart, &pos, NULL, NULL, NULL, &p))
    for (const coord_item *it = p; it; it = it->next)
      if (deal_uses(it, uid)) return true;
  return false;
}

static tm_status deal_find(tm_coordinator *c, uint64_t uid, coord_resource **out,
                           tm_err *err) {
  *out = coord_resource_find(c, uid);
  if (*out && (*out)->accounts) return TM_OK;
  return tm_fail(err, TM_EPRECOND, "this iterator is closed, or is not dealt out");
}

static void accounts_begin(coord_accounts *a, const tm_dataset *ds, uint64_t pass) {
  int64_t n = tm_dataset_cardinality(ds);
  a->pass = pass;
  a->next = a->done = a->steps = 0;
  a->end = n >= 0 ? n : -1;
  a->nback = 0;
}

tm_status tm_coordinator_start_pass(tm_coordinator *c, uint64_t uid, tm_err *err) {
  coord_resource *r;
  pthread_mutex_lock(&c->mu);
  tm_status s = deal_find(c, uid, &r, err);
  if (s == TM_OK && deal_in_use(c, uid))
    s = tm_fail(
        err, TM_EPRECOND,
        "functions are queued or run, which take from this iterator: join first");
  if (s == TM_OK) accounts_begin(r->accounts, r->ds, r->accounts->pass + 1);
  pthread_mutex_unlock(&c->mu);
  return s;
}

tm_status tm_coordinator_progress(tm_coordinator *c, uint64_t uid, tm_progress *out,
                                  tm_err *err) {
  coord_resource *r;
  pthread_mutex_lock(&c->mu);
  tm_status s = deal_find(c, uid, &r, err);
  if (s == TM_OK) {
    const coord_accounts *a = r->accounts;
    *out = (tm_progress){.pass = a->pass,
                         .dealt = a->next - back_total(a),
                         .done = a->done,
                         .left = accounts_left(a),
                         .steps = a->steps,
                         .deals = a->deals,
                         .endless = tm_dataset_cardinality(r->ds) == TM_DATA_INFINITE};
  }
  pthread_mutex_unlock(&c->mu);
  return s;
}

/* --- states --- */

static int range_compare(const void *a, const void *b) {
  int64_t x = ((const tm_range *)a)->first, y = ((const tm_range *)b)->first;
  return (x > y) - (x < y);
}

/* In order, and those that touch made one; how many there are. */
static int32_t ranges_join(tm_range *r, int32_t n) {
  int32_t m = 0;
  if (n) qsort(r, (size_t)n, sizeof *r, range_compare);
  for (int32_t i = 0; i < n; i++) {
    if (m && r[m - 1].first + r[m - 1].n >= r[i].first) {
      int64_t end = r[i].first + r[i].n, last = r[m - 1].first + r[m - 1].n;
      if (end > last) r[m - 1].n = end - r[m - 1].first;
    } else {
      r[m++] = r[i];
    }
  }
  return m;
}

/* Numbers of closures, rising. */
typedef struct deal_ids {
  const uint64_t *id;
  int32_t n;
} deal_ids;

static int id_compare(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static bool deal_among(const deal_ids *ids, uint64_t id) {
  return ids && ids->n && bsearch(&id, ids->id, (size_t)ids->n, sizeof id, id_compare);
}

/* Deals of this pass that closures hold, but for some closures, below `end`. */
static int32_t deal_held(const tm_coordinator *c, uint64_t uid, const coord_accounts *a,
                         const deal_ids *but, tm_range *out, int32_t max) {
  deal_walk w = {c, 0, NULL};
  int32_t n = 0;
  for (const coord_item *it; n < max && (it = walk_next(&w));) {
    /* What is to train in a round is not in before the round ends. */
    bool waits = c->opt.mode == TM_MODE_SYNC && it->trains;
    if (!waits && deal_among(but, it->id)) continue;
    for (int32_t i = 0; it->dealt && i < it->narg && n < max; i++) {
      const tm_deal *d = &it->deal[i];
      if (!d->count || it->arg[i].iterator != uid || d->pass != a->pass) continue;
      int64_t k = d->count;
      if (a->end >= 0 && d->first + k > a->end) k = a->end - d->first;
      if (k > 0) out[n++] = (tm_range){d->first, k};
    }
  }
  return n;
}

static tm_status deal_undone(const tm_coordinator *c, const coord_resource *r,
                             const deal_ids *but, tm_deals *out) {
  const coord_accounts *a = r->accounts;
  int32_t max = a->nback + a->held;
  tm_range *range = max ? tm_malloc((size_t)max * sizeof *range) : NULL;
  if (max && !range) return TM_ENOMEM;
  if (a->nback) memcpy(range, a->back, (size_t)a->nback * sizeof *range);
  int32_t n = a->nback;
  n += deal_held(c, r->uid, a, but, range + n, a->held);
  *out = (tm_deals){r->seed, a->pass, a->next, range, ranges_join(range, n), max};
  return TM_OK;
}

static tm_status deal_copy(const tm_deals *from, tm_deals *out) {
  size_t bytes = (size_t)from->n * sizeof *from->undone;
  *out = *from;
  out->room = from->n;
  out->undone = bytes ? tm_malloc(bytes) : NULL;
  if (bytes && !out->undone) {
    memset(out, 0, sizeof *out);
    return TM_ENOMEM;
  }
  if (bytes) memcpy(out->undone, from->undone, bytes);
  return TM_OK;
}

tm_status tm_coordinator_deals(tm_coordinator *c, uint64_t uid, bool noted,
                               tm_deals *out, tm_err *err) {
  coord_resource *r;
  memset(out, 0, sizeof *out);
  pthread_mutex_lock(&c->mu);
  tm_status s = deal_find(c, uid, &r, err);
  if (s == TM_OK) {
    const tm_deals *n = noted && r->accounts->noted ? &r->accounts->note : NULL;
    if (n ? deal_copy(n, out) : deal_undone(c, r, NULL, out))
      s = tm_nomem(err, "a state");
    if (noted) r->accounts->noted = false;
  }
  pthread_mutex_unlock(&c->mu);
  return s;
}

bool tm_coordinator_deals_out(tm_coordinator *c) {
  bool any = false;
  pthread_mutex_lock(&c->mu);
  for (int32_t i = 0; i < c->nresource; i++) any = any || c->resource[i].accounts;
  pthread_mutex_unlock(&c->mu);
  return any;
}

tm_status tm_coordinator_note_deals(tm_coordinator *c, const uint64_t *in, int32_t n,
                                    tm_err *err) {
  const deal_ids but = {in, n};
  tm_status s = TM_OK;
  pthread_mutex_lock(&c->mu);
  for (int32_t i = 0; i < c->nresource && s == TM_OK; i++) {
    coord_accounts *a = c->resource[i].accounts;
    if (!a) continue;
    tm_deals_release(&a->note);
    a->noted = false;
    s = deal_undone(c, &c->resource[i], &but, &a->note);
    a->noted = s == TM_OK;
  }
  pthread_mutex_unlock(&c->mu);
  return s ? tm_nomem(err, "a checkpoint") : TM_OK;
}

void tm_deals_release(tm_deals *d) {
  tm_free(d->undone, (size_t)d->room * sizeof *d->undone);
  memset(d, 0, sizeof *d);
}

/* Closures that wait keep what they have where it is of this pass; others are dealt to
 * anew.  How far the dealing is then. */
static int64_t deal_keep(tm_coordinator *c, uint64_t uid, uint64_t pass, int64_t next) {
  deal_walk w = {c, 0, NULL};
  for (coord_item *it; (it = walk_next(&w));) {
    if (!it->dealt || !deal_uses(it, uid)) continue;
    for (int32_t i = 0; i < it->narg && it->dealt; i++) {
      const tm_deal *d = &it->deal[i];
      if (!d->count || it->arg[i].iterator != uid) continue;
      if (d->pass != pass)
        coord_deal_back(c, it);
      else if (d->first + d->count > next)
        next = d->first + d->count;
    }
  }
  return next;
}

/* All of `from` but what is in `minus` (both in order) to back. */
static void deal_subtract(coord_accounts *a, tm_range from, const tm_range *minus,
                          int32_t n) {
  int64_t at = from.first, end = from.first + from.n;
  for (int32_t i = 0; i < n && at < end; i++) {
    int64_t to = minus[i].first < end ? minus[i].first : end;
    if (to > at) back_add(a, (tm_range){at, to - at});
    if (minus[i].first + minus[i].n > at) at = minus[i].first + minus[i].n;
  }
  if (at < end) back_add(a, (tm_range){at, end - at});
}

static tm_status deal_restore(tm_coordinator *c, coord_resource *r,
                              const tm_deals *to) {
  coord_accounts *a = r->accounts;
  int64_t next = deal_keep(c, r->uid, to->pass, to->next);
  int32_t nheld = a->held;
  tm_range *held = tm_malloc(((size_t)nheld + 1) * sizeof *held);
  tm_status s = held ? back_room(a, to->n + 2 * nheld + 2) : TM_ENOMEM;
  if (s == TM_OK) {
    bool same = a->pass == to->pass;
    int64_t done = same ? a->done : 0, steps = same ? a->steps : 0;
    accounts_begin(a, r->ds, to->pass);
    a->next = a->end >= 0 && next > a->end ? a->end : next;
    int32_t n = ranges_join(held, deal_held(c, r->uid, a, NULL, held, nheld));
    int64_t out = 0;
    for (int32_t i = 0; i < n; i++) out += held[i].n;
    for (int32_t i = 0; i < to->n; i++) deal_subtract(a, to->undone[i], held, n);
    deal_subtract(a, (tm_range){to->next, next - to->next}, held, n);
    a->done = a->next - out - back_total(a);
    /* Others, and what is lost, were functions that took as much as the last one. */
    a->steps = steps + (a->last ? (a->done - done) / a->last : 0);
  }
  tm_free(held, ((size_t)nheld + 1) * sizeof *held);
  return s;
}

tm_status tm_coordinator_redeal(tm_coordinator *c, uint64_t uid, const tm_deals *to,
                                tm_err *err) {
  coord_resource *r;
  pthread_mutex_lock(&c->mu);
  tm_status s = deal_find(c, uid, &r, err);
  if (s == TM_OK && !coord_idle(c) && !c->suspended)
    s = tm_fail(
        err, TM_EPRECOND,
        "functions are queued or run, which take from this iterator: join first");
  if (s == TM_OK && deal_restore(c, r, to)) s = tm_nomem(err, "an iterator");
  if (s == TM_OK && r->seed != to->seed)
    s = coord_resource_again(c, uid, to->seed, NULL, 0, err);
  pthread_mutex_unlock(&c->mu);
  return s;
}
