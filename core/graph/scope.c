#include "graph/scope.h"

#include <string.h>

#include "base/check.h"
#include "base/mem.h"

/*
 * Design.  Frames may leave from the middle of the stack (a tape stops while a trace
 * opened after it is still open), so marks are serial numbers, not depths.  Serials
 * wrap around; only their differences count.
 */

tm_status tm_scope_new(tm_scope **out) {
  *out = NULL;
  TM_TRY(tm_ops_init(NULL));
  tm_scope *sc = *out = tm_calloc(1, sizeof *sc);
  if (!sc) return TM_ENOMEM;
  sc->env.worker = -1;
  sc->env.threads = 1;
  return TM_OK;
}

static void scope_drop(tm_scope *sc, int32_t i) {
  tm_frame f = sc->frame[i];
  memmove(&sc->frame[i], &sc->frame[i + 1], (size_t)(sc->n - i - 1) * sizeof f);
  sc->n--;
  if (f.kind == TM_FRAME_TRACE) {
    tm_trace_close(f.trace);
    tm_trace_unref(f.trace);
  }
  if (f.kind == TM_FRAME_TAPE) {
    tm_tape_detach(f.tape);
    tm_tape_unref(f.tape);
  }
}

void tm_scope_free(tm_scope *sc) {
  if (!sc) return;
  while (sc->n) scope_drop(sc, sc->n - 1);
  tm_free(sc->frame, (size_t)sc->cap * sizeof *sc->frame);
  tm_free(sc, sizeof *sc);
}

void tm_scope_set_state(tm_scope *sc, tm_state *st) { sc->state = st; }
tm_state *tm_scope_state(tm_scope *sc) { return sc->state; }
tm_run_env *tm_scope_env(tm_scope *sc) { return &sc->env; }

tm_status tm_scope_push(tm_scope *sc, tm_frame f) {
  if (sc->n == sc->cap) {
    int32_t cap = sc->cap ? sc->cap * 2 : 8;
    if (cap > 1 << 16) return TM_EEXHAUSTED;
    tm_frame *p =
        tm_realloc(sc->frame, (size_t)sc->cap * sizeof *p, (size_t)cap * sizeof *p);
    if (!p) return TM_ENOMEM;
    sc->frame = p;
    sc->cap = cap;
  }
  f.serial = sc->serial++;
  sc->frame[sc->n++] = f;
  return TM_OK;
}

void tm_scope_remove(tm_scope *sc, const void *thing) {
  for (int32_t i = sc->n - 1; i >= 0; i--) {
    tm_frame *f = &sc->frame[i];
    if (f->kind == TM_FRAME_EAGER) continue;
    if (f->trace != thing && f->tape != thing) continue;
    scope_drop(sc, i);
    return;
  }
}

tm_trace *tm_scope_trace(const tm_scope *sc) {
  for (int32_t i = sc->n - 1; i >= 0; i--) {
    if (sc->frame[i].kind == TM_FRAME_EAGER) return NULL;
    if (sc->frame[i].kind == TM_FRAME_TRACE) return sc->frame[i].trace;
  }
  return NULL;
}

bool tm_scope_idle(const tm_scope *sc) { return sc->n == 0; }

tm_status tm_scope_push_eager(tm_scope *sc) {
  return tm_scope_push(sc, (tm_frame){.kind = TM_FRAME_EAGER});
}

void tm_scope_pop_eager(tm_scope *sc) {
  for (int32_t i = sc->n - 1; i >= 0; i--) {
    if (sc->frame[i].kind != TM_FRAME_EAGER) continue;
    scope_drop(sc, i);
    return;
  }
}

int32_t tm_scope_mark(const tm_scope *sc) { return (int32_t)sc->serial; }

void tm_scope_unwind(tm_scope *sc, int32_t mark) {
  while (sc->n && (int32_t)(sc->frame[sc->n - 1].serial - (uint32_t)mark) >= 0)
    scope_drop(sc, sc->n - 1);
}
