#include "cluster/programs.h"

#include <string.h>

#include "base/check.h"
#include "base/map.h"
#include "base/mem.h"

/* Invariant: `taken` counts steps of a slot that are out; only a slot with none may be
 * evicted. */
struct tm_program_slot {
  uint64_t hash[2];
  tm_program *program;
  tm_step *spare[TM_PROGRAM_SPARES];
  int32_t nspare, taken;
  bool late_next;
  uint64_t used; /* tick of the last use */
  int64_t cost;  /* ns; 0: not known yet */
};

struct tm_programs {
  tm_map *by_hash; /* hash[0] -> slot */
  tm_program_slot *slot[TM_PROGRAMS_MAX];
  int32_t n;
  uint64_t tick;
};

tm_status tm_programs_new(tm_programs **out) {
  *out = NULL;
  tm_programs *p = tm_calloc(1, sizeof *p);
  if (!p) return TM_ENOMEM;
  if (tm_map_new(&p->by_hash)) {
    tm_free(p, sizeof *p);
    return TM_ENOMEM;
  }
  *out = p;
  return TM_OK;
}

static void programs_slot_free(tm_program_slot *s) {
  for (int32_t i = 0; i < s->nspare; i++) tm_step_free(s->spare[i]);
  tm_program_unref(s->program);
  tm_free(s, sizeof *s);
}

void tm_programs_free(tm_programs *p) {
  if (!p) return;
  for (int32_t i = 0; i < p->n; i++) programs_slot_free(p->slot[i]);
  tm_map_free(p->by_hash);
  tm_free(p, sizeof *p);
}

static bool programs_has_next(const tm_graph *g) {
  for (int32_t i = 0; i < g->nnode; i++) {
    const tm_node *n = &g->node[i];
    if (strcmp(n->op->name, "iterator_next") == 0) return true;
    for (int32_t k = 0; k < n->attrs.n; k++)
      if (n->attrs.a[k].kind == TM_ATTR_FUNC && programs_has_next(n->attrs.a[k].u.g))
        return true;
  }
  return false;
}

static bool programs_late(const tm_graph *g) {
  for (int32_t i = 0; i < g->nnode; i++)
    for (int32_t k = 0; k < g->node[i].attrs.n; k++)
      if (g->node[i].attrs.a[k].kind == TM_ATTR_FUNC &&
          programs_has_next(g->node[i].attrs.a[k].u.g))
        return true;
  return false;
}

static void programs_evict(tm_programs *p) {
  int32_t oldest = -1;
  for (int32_t i = 0; i < p->n; i++)
    if (!p->slot[i]->taken && (oldest < 0 || p->slot[i]->used < p->slot[oldest]->used))
      oldest = i;
  TM_DCHECK(oldest >= 0); /* at most three steps are out */
  tm_map_del(p->by_hash, p->slot[oldest]->hash[0]);
  programs_slot_free(p->slot[oldest]);
  p->slot[oldest] = p->slot[--p->n];
}

static tm_status programs_add(tm_programs *p, tm_graph *g, tm_program_slot **out,
                              tm_err *err) {
  if (p->n == TM_PROGRAMS_MAX) programs_evict(p);
  tm_program_slot *s = tm_calloc(1, sizeof *s);
  if (!s) return tm_nomem(err, "a function");
  s->hash[0] = g->hash[0];
  s->hash[1] = g->hash[1];
  s->late_next = programs_late(g);
  tm_status st = tm_program_new(g, &s->program, err);
  if (st == TM_OK && tm_map_put(p->by_hash, s->hash[0], s))
    st = tm_nomem(err, "a function");
  if (st) {
    programs_slot_free(s);
    return st;
  }
  p->slot[p->n++] = s;
  *out = s;
  return TM_OK;
}

tm_status tm_programs_get(tm_programs *p, tm_graph *g, tm_program_slot **out,
                          tm_err *err) {
  tm_program_slot *s = tm_map_get(p->by_hash, g->hash[0]);
  if (s && s->hash[1] != g->hash[1])
    return tm_fail(err, TM_EINTERNAL, "two functions have the same hash");
  if (!s) TM_TRY(programs_add(p, g, &s, err));
  s->used = ++p->tick;
  *out = s;
  return TM_OK;
}

tm_status tm_programs_take_step(tm_programs *p, tm_program_slot *s, tm_step **out,
                                tm_err *err) {
  (void)p;
  if (s->nspare) {
    *out = s->spare[--s->nspare];
  } else {
    TM_TRY(tm_step_new(s->program, out, err));
  }
  s->taken++;
  return TM_OK;
}

void tm_programs_give_step(tm_programs *p, tm_program_slot *s, tm_step *st) {
  (void)p;
  s->taken--;
  if (s->nspare < TM_PROGRAM_SPARES) {
    s->spare[s->nspare++] = st;
  } else {
    tm_step_free(st);
  }
}

bool tm_programs_late_next(const tm_program_slot *s) { return s->late_next; }

int64_t tm_programs_cost(const tm_program_slot *s) {
  return s->cost ? s->cost : INT64_MAX / 2;
}

void tm_programs_took(tm_program_slot *s, int64_t ns) { s->cost = ns > 0 ? ns : 1; }
