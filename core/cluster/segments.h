/*
 * segments.h - a growing list of pieces of payload for one frame.
 *
 * Ownership: the list is the caller's, the bytes are not.  Threads: one at a time.
 */
#ifndef TM_CLUSTER_SEGMENTS_H
#define TM_CLUSTER_SEGMENTS_H

#include "base/mem.h"
#include "net/channel.h"

typedef struct tm_segments {
  tm_segment *s;
  int32_t n, cap;
} tm_segments;

static inline tm_status tm_segments_push(tm_segments *l, const void *p, uint64_t n) {
  if (l->n == TM_FRAME_MAX_SEGMENTS) return TM_EEXHAUSTED;
  if (l->n == l->cap) {
    int32_t cap = l->cap ? l->cap * 2 : 16;
    tm_segment *s =
        tm_realloc(l->s, (size_t)l->cap * sizeof *s, (size_t)cap * sizeof *s);
    if (!s) return TM_ENOMEM;
    l->s = s;
    l->cap = cap;
  }
  l->s[l->n++] = (tm_segment){p, n};
  return TM_OK;
}

static inline void tm_segments_release(tm_segments *l) {
  tm_free(l->s, (size_t)l->cap * sizeof *l->s);
  *l = (tm_segments){NULL, 0, 0};
}

#endif
