/*
 * pack.h - MessagePack (msgpack.org specification of 2013): a writer on a tm_buf
 * and a bounded reader on bytes.
 *
 * The writer is msgpack-c's packer.  The reader is our own cursor because
 * msgpack-c's unpacker reserves what a header merely claims; this one allocates
 * nothing, checks every length against the bytes at hand, and its strings point
 * into the input.  Both keep the first error: call them in a row and look once.
 *
 *     tm_packer w; tm_pack_init(&w, &buf);
 *     tm_pack_array(&w, 2); tm_pack_int(&w, 7); tm_pack_str(&w, "seven", 5);
 *     TM_TRY(w.status);
 *
 *     tm_unpacker r; tm_unpack_init(&r, p, n);
 *     uint32_t k = tm_unpack_array(&r, 2, 2); int64_t v = tm_unpack_int(&r);
 *     TM_TRY(tm_unpack_end(&r, err));
 *
 * Threads: one at a time.
 */
#ifndef TM_BASE_PACK_H
#define TM_BASE_PACK_H

#include <stdbool.h>

#include "base/buf.h"

typedef struct tm_packer {
  tm_buf *buf;
  tm_status status;
} tm_packer;

void tm_pack_init(tm_packer *w, tm_buf *buf);
void tm_pack_nil(tm_packer *w);
void tm_pack_bool(tm_packer *w, bool v);
void tm_pack_int(tm_packer *w, int64_t v);
void tm_pack_uint(tm_packer *w, uint64_t v);
void tm_pack_double(tm_packer *w, double v);
void tm_pack_str(tm_packer *w, const char *s, size_t n);
void tm_pack_cstr(tm_packer *w, const char *s); /* NULL packs nil */
void tm_pack_bin(tm_packer *w, const void *p, size_t n);
void tm_pack_array(tm_packer *w, uint32_t n);                  /* n items follow */
void tm_pack_map(tm_packer *w, uint32_t n);                    /* n pairs follow */
void tm_pack_i64s(tm_packer *w, const int64_t *v, uint32_t n); /* an array */

typedef enum tm_pack_kind {
  TM_PACK_NONE, /* end of input, or an error before */
  TM_PACK_NIL,
  TM_PACK_BOOL,
  TM_PACK_INT, /* also unsigned */
  TM_PACK_DOUBLE,
  TM_PACK_STR,
  TM_PACK_BIN,
  TM_PACK_ARRAY,
  TM_PACK_MAP,
  TM_PACK_EXT
} tm_pack_kind;

typedef struct tm_unpacker {
  const uint8_t *p, *end, *start;
  tm_status status;   /* first error; later calls return zero values */
  const char *reason; /* static text of the first error */
} tm_unpacker;

void tm_unpack_init(tm_unpacker *r, const void *p, size_t n);
tm_pack_kind tm_unpack_peek(const tm_unpacker *r);
bool tm_unpack_nil(tm_unpacker *r); /* consumes a nil if one is next */
bool tm_unpack_bool(tm_unpacker *r);
int64_t tm_unpack_int(tm_unpacker *r);
uint64_t tm_unpack_uint(tm_unpacker *r);
/* An int in lo..hi; anything else is malformed. */
int64_t tm_unpack_range(tm_unpacker *r, int64_t lo, int64_t hi);
double tm_unpack_double(tm_unpacker *r); /* ints too */
/* The string is in the input, not NUL-terminated. */
const char *tm_unpack_str(tm_unpacker *r, size_t max, size_t *len);
/* Copies at most cap-1 bytes and terminates; longer or with NUL is malformed. */
void tm_unpack_cstr(tm_unpacker *r, char *out, size_t cap);
const void *tm_unpack_bin(tm_unpacker *r, size_t max, size_t *len);
/* Number of items, between min and max; each item takes at least one byte, so a
 * count above the bytes left is malformed at once. */
uint32_t tm_unpack_array(tm_unpacker *r, uint32_t min, uint32_t max);
uint32_t tm_unpack_map(tm_unpacker *r, uint32_t min, uint32_t max);
/* An array of at most max ints into v; returns how many. */
uint32_t tm_unpack_i64s(tm_unpacker *r, int64_t *v, uint32_t max);
void tm_unpack_skip(tm_unpacker *r); /* one value, nesting at most 32 */
void tm_unpack_fail(tm_unpacker *r, const char *reason);
/* TM_OK when nothing failed and all is consumed. */
TM_CHECKED tm_status tm_unpack_end(tm_unpacker *r, tm_err *err);

#endif
