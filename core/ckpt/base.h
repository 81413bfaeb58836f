/*
 * base.h - an earlier checkpoint whose rows a later one has again.
 *
 * The later one gets hard links to the data files of the earlier one, so that it stands
 * for itself: either may be removed.  Where the file system has no links they are
 * copied.
 *
 *     TM_TRY(tm_ckpt_base_open("runs/ckpt-6", &b, err));
 *     if (tm_ckpt_base_has(b, "table", TM_F32, &shape))
 *       TM_TRY(tm_ckpt_base_lend(b, w, "table", err));      -- then patches
 *     tm_ckpt_base_close(b);
 *
 * Patches of the earlier one are left out: a later patch has all rows that changed.
 *
 * Ownership: the caller's.  Threads: one at a time.
 */
#ifndef TM_CKPT_BASE_H
#define TM_CKPT_BASE_H

#include "ckpt/reader.h"
#include "ckpt/writer.h"

typedef struct tm_ckpt_base tm_ckpt_base;

TM_CHECKED tm_status tm_ckpt_base_open(const char *path, tm_ckpt_base **out,
                                       tm_err *err);
void tm_ckpt_base_close(tm_ckpt_base *b); /* b may be NULL */
/* Has it a tensor of this name, dtype and shape? */
bool tm_ckpt_base_has(const tm_ckpt_base *b, const char *name, tm_dtype dtype,
                      const tm_shape *shape);
/* Note all rows of a tensor, as the earlier one has them, in w. */
TM_CHECKED tm_status tm_ckpt_base_lend(tm_ckpt_base *b, tm_ckpt_writer *w,
                                       const char *name, tm_err *err);

#endif
