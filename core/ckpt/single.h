/*
 * single.h - all data of a checkpoint in one file, written as it comes.
 *
 *     TM_TRY(tm_ckpt_single_open(w, items, n, &s, err));
 *     for each item: tm_ckpt_single_put(s, its rows, in any number of pieces, err)
 *     TM_TRY(tm_ckpt_single_close(s, err));      -- noted in the index of w
 *     tm_ckpt_single_free(s);
 *
 * The file is TM_CKPT_MODEL_DATA, plain safetensors; nothing is held in memory but the
 * header.
 *
 * Ownership: the caller keeps the writer until the single file is freed.
 * Threads:   one at a time.
 */
#ifndef TM_CKPT_SINGLE_H
#define TM_CKPT_SINGLE_H

#include "ckpt/safetensors.h"
#include "ckpt/writer.h"

typedef struct tm_ckpt_single tm_ckpt_single;

/* The items are copied.  TM_EINVAL: strings, or what tm_st_header says. */
TM_CHECKED tm_status tm_ckpt_single_open(tm_ckpt_writer *w, const tm_st_item *items,
                                         size_t n, tm_ckpt_single **out, tm_err *err);
/* The next rows of the item whose turn it is.  TM_EINVAL: they are not its own. */
TM_CHECKED tm_status tm_ckpt_single_put(tm_ckpt_single *s, const tm_view *v,
                                        tm_err *err);
/* TM_EPRECOND: an item is not whole. */
TM_CHECKED tm_status tm_ckpt_single_close(tm_ckpt_single *s, tm_err *err);
void tm_ckpt_single_free(tm_ckpt_single *s); /* s may be NULL */

#endif
