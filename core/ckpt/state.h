/*
 * state.h - the file `checkpoint` of a directory: which checkpoints it has, oldest
 * first, and which is the latest.  Names are relative, so the directory may be moved.
 *
 * Ownership: release frees what read or add made.
 * Threads:   one at a time.
 */
#ifndef TM_CKPT_STATE_H
#define TM_CKPT_STATE_H

#include <stddef.h>

#include "base/status.h"

#define TM_CKPT_STATE "checkpoint"

typedef struct tm_ckpt_item {
  char *name;
  double time; /* seconds since 1970 when it was saved */
} tm_ckpt_item;

typedef struct tm_ckpt_state {
  char *latest; /* NULL: none */
  tm_ckpt_item *item;
  size_t n, cap;
  double preserved; /* when the newest one was saved that is kept for ever */
} tm_ckpt_state;

/* Empty: {0}. */
void tm_ckpt_state_release(tm_ckpt_state *s); /* twice is harmless */
/* Append one; the last one is the latest.  TM_EINVAL: not a single name. */
TM_CHECKED tm_status tm_ckpt_state_add(tm_ckpt_state *s, const char *name, double time,
                                       tm_err *err);
/* Replace dir/checkpoint, all or nothing. */
TM_CHECKED tm_status tm_ckpt_state_write(const char *dir, const tm_ckpt_state *s,
                                         tm_err *err);
/* TM_ENOTFOUND: there is none.  On failure *s is empty. */
TM_CHECKED tm_status tm_ckpt_state_read(const char *dir, tm_ckpt_state *s, tm_err *err);

/* Change the list under the directory's lock, so that several processes may save there:
 * what others listed stays.  Names in `gone` leave it, `add` (NULL: none) becomes the
 * last.  *out is the list now; `preserved` 0 leaves what is there. */
typedef struct tm_ckpt_change {
  const char *add;
  double time, preserved;
  const char *const *gone;
  size_t ngone;
} tm_ckpt_change;
TM_CHECKED tm_status tm_ckpt_state_change(const char *dir, const tm_ckpt_change *c,
                                          tm_ckpt_state *out, tm_err *err);

#endif
