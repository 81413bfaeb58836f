/*
 * ids.h - row ids that a tensor holds: as int64, checked.
 *
 *     const int64_t *ids;
 *     TM_TRY(tm_ids_read(&c->in[1], "indices", rows, "params", c->scratch, &ids,
 *                        c->err));
 *
 * Threads: pure functions.
 */
#ifndef TM_GRAPH_IDS_H
#define TM_GRAPH_IDS_H

#include "graph/op.h"

/* Bytes of scratch that tm_ids_read needs. */
size_t tm_ids_scratch(const tm_view *ids);
/* The ids of an int32, int64 or uint8 view, each in 0..rows-1, or TM_EINVAL naming the
 * id, its place and the number of rows of `of`.  *out may be the view's own data. */
TM_CHECKED tm_status tm_ids_read(const tm_view *ids, const char *name, int64_t rows,
                                 const char *of, void *scratch, const int64_t **out,
                                 tm_err *err);
/* The same, but negative ids pass. */
TM_CHECKED tm_status tm_ids_read_signed(const tm_view *ids, const char *name,
                                        int64_t rows, const char *of, void *scratch,
                                        const int64_t **out, tm_err *err);

#endif
