/*
 * codec.h - tensors as MessagePack metadata plus raw payload, and as one blob.
 *
 * Head: array [dtype, [dims...], payload_bytes].  Payload of numbers is the
 * elements, little-endian; of strings: n lengths as u32, then all bytes.
 *
 * Threads: pure functions.
 */
#ifndef TM_TENSOR_CODEC_H
#define TM_TENSOR_CODEC_H

#include "base/pack.h"
#include "tensor/tensor.h"

typedef struct tm_tensor_head {
  tm_dtype dtype;
  tm_shape shape;
  uint64_t payload_bytes;
} tm_tensor_head;

uint64_t tm_payload_bytes(const tm_view *v);
void tm_pack_head(tm_packer *w, const tm_view *v);
/* Checks dtype, shape, and that payload_bytes fits them exactly (strings: at least
 * 4 bytes an element) and is <= max. */
void tm_unpack_head(tm_unpacker *r, uint64_t max, tm_tensor_head *h);
/* Append the payload to buf. */
TM_CHECKED tm_status tm_payload_put(tm_buf *buf, const tm_view *v);
/* Make a tensor from a head and its payload bytes (copied). */
TM_CHECKED tm_status tm_payload_get(const tm_tensor_head *h, const void *p, size_t n,
                                    tm_tensor **out, tm_err *err);
/* Head and payload in one MessagePack value (a bin in the head's array): for small
 * tensors inside graphs and messages. */
void tm_pack_tensor(tm_packer *w, const tm_view *v);
TM_CHECKED tm_status tm_unpack_tensor(tm_unpacker *r, size_t max, tm_tensor **out,
                                      tm_err *err);

#endif
