/*
 * codec.h - datasets as MessagePack, so that another process can rebuild them.
 *
 * A dataset is [version, node]; a node is [kind, parameters..., inputs...].  Memory
 * sources carry their tensors, file sources the names of their files and the
 * resolved columns (nothing is inferred again), map and filter their graphs.
 *
 * Threads: pure functions.
 */
#ifndef TM_DATA_CODEC_H
#define TM_DATA_CODEC_H

#include "data/dataset.h"

TM_CHECKED tm_status tm_dataset_pack(const tm_dataset *ds, tm_buf *out, tm_err *err);

/* Everything is checked; nothing larger than the input is allocated, no file is
 * opened.  TM_EINVAL: malformed. */
TM_CHECKED tm_status tm_dataset_unpack(const void *p, size_t n, tm_dataset **out,
                                       tm_err *err);

#endif
