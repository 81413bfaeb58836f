/*
 * ps_wire.h - a ps request and its answer as metadata and payload; see docs/wire.md.
 *
 * Threads: pure functions.
 */
#ifndef TM_CLUSTER_PS_WIRE_H
#define TM_CLUSTER_PS_WIRE_H

#include "base/arena.h"
#include "cluster/segments.h"
#include "ps/store.h"

/* Append to w; ids and values join `seg` from where they lie. */
TM_CHECKED tm_status tm_ps_request_pack(const tm_ps_request *rq, tm_packer *w,
                                        tm_segments *seg);
/* Everything is checked against the bytes at hand.  Items come from the arena, ids and
 * values point into payload, texts into the arena.  Places of read rows (dst.data)
 * are not set; *rows_bytes is what all of them need, each padded as a segment. */
TM_CHECKED tm_status tm_ps_request_unpack(const void *meta, size_t n, void *payload,
                                          uint64_t payload_bytes, tm_arena *a,
                                          tm_ps_request *rq, uint64_t *rows_bytes,
                                          tm_err *err);

/* The answer; one segment a read when the reads went well. */
TM_CHECKED tm_status tm_ps_reply_pack(const tm_ps_request *rq, tm_packer *w,
                                      tm_segments *seg);
/* Read an answer from the channel into rq: statuses, err, and every read to its place.
 */
TM_CHECKED tm_status tm_ps_reply_take(tm_channel *ch, const tm_frame *f,
                                      const void *meta, tm_ps_request *rq, tm_err *err);

/* Shards to make; their values (kind "value") join seg. */
TM_CHECKED tm_status tm_ps_specs_pack(const tm_shard_spec *sp, int32_t n, tm_packer *w,
                                      tm_segments *seg);
/* One spec; `value` is set to a tensor that the caller unrefs (NULL: none). */
TM_CHECKED tm_status tm_ps_spec_unpack(tm_unpacker *r, const void *payload,
                                       uint64_t payload_bytes, uint64_t *at,
                                       tm_shard_spec *sp, tm_tensor **value,
                                       tm_err *err);

void tm_ps_commit_pack(tm_packer *w, const tm_ps_commit *c);
/* c->share: from the arena. */
TM_CHECKED tm_status tm_ps_commit_unpack(const void *meta, size_t n, tm_arena *a,
                                         tm_ps_commit *c, tm_err *err);

void tm_ps_stats_pack(tm_packer *w, const tm_store_stats *st);
TM_CHECKED tm_status tm_ps_stats_unpack(const void *meta, size_t n, tm_store_stats *st,
                                        tm_err *err);

/* dtype and dims, of known size. */
void tm_type_pack(tm_packer *w, tm_dtype t, const tm_shape *s);
void tm_type_unpack(tm_unpacker *r, tm_dtype *t, tm_shape *s);

#endif
