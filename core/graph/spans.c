#include "graph/spans.h"

#include "base/mem.h"

static size_t spans_size(int64_t cap) {
  return sizeof(tm_spans) + (size_t)cap * sizeof(tm_span);
}

tm_status tm_spans_new(int64_t cap, tm_spans **out) {
  *out = NULL;
  if (cap < 1 || cap > 1 << 24) return TM_EINVAL;
  tm_spans *sp = tm_calloc(1, spans_size(cap));
  if (!sp) return TM_ENOMEM;
  sp->cap = cap;
  *out = sp;
  return TM_OK;
}

void tm_spans_free(tm_spans *sp) {
  if (sp) tm_free(sp, spans_size(sp->cap));
}

void tm_spans_add(tm_spans *sp, const char *name, int64_t from) {
  if (sp->n == sp->cap) {
    sp->lost++;
    return;
  }
  sp->span[sp->n++] = (tm_span){name, from, tm_now_ns()};
}
