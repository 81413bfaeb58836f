/*
 * sig.h - parser of an op's signature text (the grammar is in op.h).
 *
 * Ownership: strings and lists of defaults live in the tm_sig_pool beside the sig.
 * Threads:   pure functions.
 */
#ifndef TM_GRAPH_SIG_H
#define TM_GRAPH_SIG_H

#include "graph/op.h"

/* Memory of defaults: "same" needs 5 bytes here, {1, 1} two ints. */
typedef struct tm_sig_pool {
  char text[96];
  size_t ntext;
  int64_t ints[16];
  double floats[8];
  int32_t nints, nfloats;
} tm_sig_pool;

TM_CHECKED tm_status tm_sig_parse(const char *text, tm_sig *sig, tm_sig_pool *pool,
                                  tm_err *err);
/* "int", "axes", ... */
const char *tm_attr_kind_name(tm_attr_kind k);

#endif
