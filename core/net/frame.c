#include "net/frame.h"

#include <inttypes.h>
#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"

/*
 * Design.  Offsets of the header, little-endian:
 *
 *    0  4  magic "TMIL"          16  8  request id
 *    4  2  version               24  8  payload bytes
 *    6  2  kind                  32  4  zero
 *    8  4  flags                 36  4  CRC-32C of bytes 0..35
 *   12  4  metadata bytes
 */
enum {
  AT_VERSION = 4,
  AT_KIND = 6,
  AT_FLAGS = 8,
  AT_META = 12,
  AT_ID = 16,
  AT_PAYLOAD = 24,
  AT_ZERO = 32,
  AT_CRC = 36
};

#define FRAME_MAGIC 0x4c494d54u /* "TMIL" */

void tm_frame_pack(const tm_frame *f, uint8_t head[TM_FRAME_HEAD]) {
  tm_put32(head, FRAME_MAGIC);
  tm_put16(head + AT_VERSION, TM_WIRE_VERSION);
  tm_put16(head + AT_KIND, f->kind);
  tm_put32(head + AT_FLAGS, f->flags);
  tm_put32(head + AT_META, f->meta_bytes);
  tm_put64(head + AT_ID, f->id);
  tm_put64(head + AT_PAYLOAD, f->payload_bytes);
  tm_put32(head + AT_ZERO, 0);
  tm_put32(head + AT_CRC, tm_crc32c(0, head, AT_CRC));
}

tm_status tm_frame_unpack(const uint8_t head[TM_FRAME_HEAD], uint64_t max_payload,
                          tm_frame *f, tm_err *err) {
  if (tm_get32(head) != FRAME_MAGIC)
    return tm_fail(err, TM_EDATALOSS, "what came is not a tidemill frame");
  uint16_t version = tm_get16(head + AT_VERSION);
  if (version != TM_WIRE_VERSION)
    return tm_fail(err, TM_EPRECOND,
                   "the peer speaks protocol version %u, this task version %d: run the "
                   "same tidemill on all tasks",
                   (unsigned)version, (int)TM_WIRE_VERSION);
  if (tm_get32(head + AT_CRC) != tm_crc32c(0, head, AT_CRC))
    return tm_fail(err, TM_EDATALOSS, "a frame's header is damaged");
  f->kind = tm_get16(head + AT_KIND);
  f->flags = tm_get32(head + AT_FLAGS);
  f->meta_bytes = tm_get32(head + AT_META);
  f->id = tm_get64(head + AT_ID);
  f->payload_bytes = tm_get64(head + AT_PAYLOAD);
  if (f->meta_bytes > TM_FRAME_MAX_META)
    return tm_fail(err, TM_EEXHAUSTED, "a frame with %u bytes of metadata: at most %d",
                   (unsigned)f->meta_bytes, (int)TM_FRAME_MAX_META);
  if (f->payload_bytes > max_payload || f->payload_bytes % TM_FRAME_ALIGN)
    return tm_fail(err, TM_EEXHAUSTED,
                   "a frame with %" PRIu64 " bytes of payload: at most %" PRIu64
                   ", in whole segments",
                   f->payload_bytes, max_payload);
  return TM_OK;
}

void tm_hello_pack(tm_packer *w, const tm_hello *h) {
  tm_pack_array(w, 7);
  tm_pack_int(w, TM_WIRE_VERSION);
  tm_pack_cstr(w, h->cluster);
  tm_pack_cstr(w, h->task);
  tm_pack_cstr(w, h->purpose);
  tm_pack_uint(w, h->incarnation);
  tm_pack_uint(w, h->term.number);
  tm_pack_uint(w, h->term.chief);
}

tm_status tm_hello_unpack(const void *p, size_t n, tm_hello *h, tm_err *err) {
  tm_unpacker r;
  memset(h, 0, sizeof *h);
  tm_unpack_init(&r, p, n);
  tm_unpack_array(&r, 7, 7);
  tm_unpack_range(&r, TM_WIRE_VERSION, TM_WIRE_VERSION);
  tm_unpack_cstr(&r, h->cluster, sizeof h->cluster);
  tm_unpack_cstr(&r, h->task, sizeof h->task);
  tm_unpack_cstr(&r, h->purpose, sizeof h->purpose);
  h->incarnation = tm_unpack_uint(&r);
  h->term.number = tm_unpack_uint(&r);
  h->term.chief = tm_unpack_uint(&r);
  return tm_unpack_end(&r, err);
}

void tm_err_pack(tm_packer *w, const tm_err *e) {
  tm_pack_array(w, 5);
  tm_pack_int(w, e->code);
  tm_pack_int(w, e->step);
  tm_pack_cstr(w, e->msg);
  tm_pack_cstr(w, e->task);
  tm_pack_cstr(w, e->op);
}

void tm_err_unpack(tm_unpacker *r, tm_err *e) {
  tm_err_clear(e);
  tm_unpack_array(r, 5, 5);
  int64_t code = tm_unpack_int(r);
  e->code = code < 0 && code >= TM_EAGAIN ? (tm_status)code : TM_EUNKNOWN;
  e->step = tm_unpack_int(r);
  tm_unpack_cstr(r, e->msg, sizeof e->msg);
  tm_unpack_cstr(r, e->task, sizeof e->task);
  tm_unpack_cstr(r, e->op, sizeof e->op);
}
