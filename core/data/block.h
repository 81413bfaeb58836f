/*
 * block.h - how elements move between cursors: a row of a block.
 *
 * A block is a set of tensors that live together.  Either each of its nrows rows is
 * an element (memory sources, files read some rows at a time), or the tensors
 * themselves are one element (what map and batch make).  So rows travel through
 * shuffle, take, shard and rep as a pointer and a number, and batch copies their
 * bytes straight into its tensors.
 *
 * Ownership: blocks are refcounted; a tm_row owns one reference.
 * Threads:   references anywhere; contents are read-only once shared.
 */
#ifndef TM_DATA_BLOCK_H
#define TM_DATA_BLOCK_H

#include "tensor/tensor.h"

enum { TM_ROW_WHOLE = -1 }; /* row number: the tensors are the element */

typedef struct tm_block {
  atomic_int refs;
  int32_t width;
  int64_t nrows; /* rows that count, or TM_ROW_WHOLE */
  tm_tensor *t[];
} tm_block;

typedef struct tm_row {
  tm_block *b; /* NULL: empty */
  int64_t i;
} tm_row;

/* Tensors are NULL, for the caller to fill. */
TM_CHECKED tm_status tm_block_new(int32_t width, int64_t nrows, tm_block **out);
tm_block *tm_block_ref(tm_block *b);
void tm_block_unref(tm_block *b); /* b may be NULL */

void tm_row_release(tm_row *r);
/* Row i of b, with a new reference. */
tm_row tm_row_of(tm_block *b, int64_t i);
/* Tensor k of the element, not owned. */
tm_view tm_row_view(const tm_row *r, int32_t k);
/* The same as a tensor that shares the block's storage. */
TM_CHECKED tm_status tm_row_tensor(const tm_row *r, int32_t k, tm_tensor **out);

/* Tensor k of n >= 1 elements, stacked on a new first axis.  Neighbouring rows of
 * one block share its storage, all else is copied.  TM_EINVAL: shapes differ. */
TM_CHECKED tm_status tm_rows_stack(const tm_row *r, int64_t n, int32_t k,
                                   tm_tensor **out, tm_err *err);

#endif
