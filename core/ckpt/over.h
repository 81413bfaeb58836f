/*
 * over.h - inside of ckpt: rows of a patch laid over rows that were read before.
 *
 * Numbers are searched in the file, so a patch of any size costs little memory.
 *
 * Ownership: the caller's.  Threads: as the file's.
 */
#ifndef TM_CKPT_OVER_H
#define TM_CKPT_OVER_H

#include "ckpt/safetensors.h"

typedef struct tm_ckpt_over {
  const tm_st_file *st;
  const tm_st_entry *ids, *rows; /* (n) int64; n rows */
  int64_t n;
  int64_t first, end; /* rows of the tensor that are wanted */
  size_t row_bytes;
} tm_ckpt_over;

/* `to` begins with row `first`.  TM_EDATALOSS: the numbers do not rise. */
TM_CHECKED tm_status tm_ckpt_lay_over(const tm_ckpt_over *o, uint8_t *to, tm_err *err);

#endif
