/*
 * window.h - windows that slide over images: what convolutions and pools share.
 *
 *     TM_TRY(tm_window_sizes(c->attrs, 0, "strides", 2, 1, stride, c->err));
 *     TM_TRY(tm_window_padding(c->attrs, 1, &same, c->err));
 *     w = (tm_window){.size = 3, .stride = stride[0], .step = 1, .same = same};
 *     TM_TRY(tm_window_place(&w, height, c->err));    -- gives w.out and w.before
 *
 * Threads: pure functions.
 */
#ifndef TM_GRAPH_WINDOW_H
#define TM_GRAPH_WINDOW_H

#include "graph/infer.h"

/* A window along one axis. */
typedef struct tm_window {
  int64_t size, stride;
  int64_t step;   /* between neighbours in it: its dilation */
  bool same;      /* as many places as strides fit; else only those inside the image */
  int64_t out;    /* places; -1: not known */
  int64_t before; /* what lies outside the image at the first place */
} tm_window;

/* An INTS attribute for `axes` axes (1 or 2): absent, one number for all, one an axis,
 * or those with a 1 before and behind, as TensorFlow writes them. */
TM_CHECKED tm_status tm_window_sizes(const tm_attrs *a, int32_t attr, const char *name,
                                     int32_t axes, int64_t absent, int64_t *out,
                                     tm_err *err);
/* "same" or "valid", in any case. */
TM_CHECKED tm_status tm_window_padding(const tm_attrs *a, int32_t attr, bool *same,
                                       tm_err *err);
/* Where the window stands on an axis of this size (-1: not known). */
TM_CHECKED tm_status tm_window_place(tm_window *w, int64_t size, tm_err *err);

#endif
