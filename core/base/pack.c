#include "base/pack.h"

#include <msgpack/pack.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"

/*
 * Design.  Writing is msgpack-c's; each call makes its packer on the stack (two
 * pointers).  Reading decodes one head at a time: kind, and a number that is the
 * value, the length or the count.
 *
 * Invariants of the reader:
 *   (1) start <= p <= end; nothing at or after end is read.
 *   (2) After the first error status and reason stay, and p stays.
 *   (3) A length or count that is returned is backed by that many bytes at p.
 */

/* ---- writer ---- */

static int pack_write(void *ud, const char *p, size_t n) {
  tm_packer *w = ud;
  w->status = tm_buf_put(w->buf, p, n);
  return w->status == TM_OK ? 0 : -1;
}

/* Run one msgpack_pack_* call unless an earlier one failed. */
#define PACK(w, call, ...)                            \
  do {                                                \
    msgpack_packer pk = {(w), pack_write};            \
    if ((w)->status == TM_OK) call(&pk, __VA_ARGS__); \
  } while (0)

void tm_pack_init(tm_packer *w, tm_buf *buf) {
  w->buf = buf;
  w->status = TM_OK;
}

void tm_pack_nil(tm_packer *w) {
  msgpack_packer pk = {w, pack_write};
  if (w->status == TM_OK) msgpack_pack_nil(&pk);
}

void tm_pack_bool(tm_packer *w, bool v) {
  msgpack_packer pk = {w, pack_write};
  if (w->status != TM_OK) return;
  if (v)
    msgpack_pack_true(&pk);
  else
    msgpack_pack_false(&pk);
}

void tm_pack_int(tm_packer *w, int64_t v) { PACK(w, msgpack_pack_int64, v); }
void tm_pack_uint(tm_packer *w, uint64_t v) { PACK(w, msgpack_pack_uint64, v); }
void tm_pack_double(tm_packer *w, double v) { PACK(w, msgpack_pack_double, v); }

/* The format's lengths have 32 bits. */
static bool pack_fits(tm_packer *w, size_t n) {
  if (n > UINT32_MAX && w->status == TM_OK) w->status = TM_EEXHAUSTED;
  return w->status == TM_OK;
}

void tm_pack_str(tm_packer *w, const char *s, size_t n) {
  if (!pack_fits(w, n)) return;
  PACK(w, msgpack_pack_str, n);
  if (n) PACK(w, msgpack_pack_str_body, s, n);
}

void tm_pack_cstr(tm_packer *w, const char *s) {
  if (s)
    tm_pack_str(w, s, strlen(s));
  else
    tm_pack_nil(w);
}

void tm_pack_bin(tm_packer *w, const void *p, size_t n) {
  if (!pack_fits(w, n)) return;
  PACK(w, msgpack_pack_bin, n);
  if (n) PACK(w, msgpack_pack_bin_body, p, n);
}

void tm_pack_array(tm_packer *w, uint32_t n) { PACK(w, msgpack_pack_array, n); }
void tm_pack_map(tm_packer *w, uint32_t n) { PACK(w, msgpack_pack_map, n); }

void tm_pack_i64s(tm_packer *w, const int64_t *v, uint32_t n) {
  tm_pack_array(w, n);
  for (uint32_t i = 0; i < n; i++) tm_pack_int(w, v[i]);
}

/* ---- reader ---- */

/* A decoded head.  u: bool, unsigned value, length or count; i: negative value. */
struct pack_head {
  tm_pack_kind kind;
  bool negative;
  uint64_t u;
  int64_t i;
  double d;
  uint8_t size; /* bytes of the head itself */
};

void tm_unpack_init(tm_unpacker *r, const void *p, size_t n) {
  r->p = r->start = p;
  r->end = n ? r->p + n : r->p;
  r->status = TM_OK;
  r->reason = NULL;
}

void tm_unpack_fail(tm_unpacker *r, const char *reason) {
  if (r->status != TM_OK) return;
  r->status = TM_EINVAL;
  r->reason = reason;
}

static size_t unpack_left(const tm_unpacker *r) { return (size_t)(r->end - r->p); }

static tm_pack_kind unpack_kind(uint8_t b) {
  if (b <= 0x7f || b >= 0xe0) return TM_PACK_INT;
  if (b <= 0x8f) return TM_PACK_MAP;
  if (b <= 0x9f) return TM_PACK_ARRAY;
  if (b <= 0xbf) return TM_PACK_STR;
  static const uint8_t kind[0x20] = {
      TM_PACK_NIL,   TM_PACK_NONE,  TM_PACK_BOOL,   TM_PACK_BOOL,   /* c0 */
      TM_PACK_BIN,   TM_PACK_BIN,   TM_PACK_BIN,    TM_PACK_EXT,    /* c4 */
      TM_PACK_EXT,   TM_PACK_EXT,   TM_PACK_DOUBLE, TM_PACK_DOUBLE, /* c8 */
      TM_PACK_INT,   TM_PACK_INT,   TM_PACK_INT,    TM_PACK_INT,    /* cc */
      TM_PACK_INT,   TM_PACK_INT,   TM_PACK_INT,    TM_PACK_INT,    /* d0 */
      TM_PACK_EXT,   TM_PACK_EXT,   TM_PACK_EXT,    TM_PACK_EXT,    /* d4 */
      TM_PACK_EXT,   TM_PACK_STR,   TM_PACK_STR,    TM_PACK_STR,    /* d8 */
      TM_PACK_ARRAY, TM_PACK_ARRAY, TM_PACK_MAP,    TM_PACK_MAP,    /* dc */
  };
  return (tm_pack_kind)kind[b - 0xc0];
}

/* Bytes of the big-endian field that follows the first byte c0..df. */
static uint8_t unpack_field(uint8_t b) {
  static const uint8_t field[0x20] = {
      0, 0, 0, 0, 1, 2, 4, 1, 2, 4, 4, 8, 1, 2, 4, 8, /* c0 */
      1, 2, 4, 8, 0, 0, 0, 0, 0, 1, 2, 4, 2, 4, 2, 4, /* d0 */
  };
  return field[b - 0xc0];
}

static uint64_t unpack_big_endian(const uint8_t *p, size_t n) {
  uint64_t v = 0;
  for (size_t i = 0; i < n; i++) v = (v << 8) | p[i];
  return v;
}

/* The value of a head whose whole data is its first byte. */
static void unpack_short(uint8_t b, struct pack_head *h) {
  switch (h->kind) {
    case TM_PACK_INT:
      h->negative = b >= 0xe0;
      h->u = b;
      h->i = (int64_t)b - (h->negative ? 256 : 0);
      break;
    case TM_PACK_STR:
      h->u = b & 0x1f;
      break;
    case TM_PACK_BOOL:
      h->u = b & 1;
      break;
    case TM_PACK_EXT: /* fixext 1, 2, 4, 8, 16: a type byte and the data */
      h->u = ((uint64_t)1 << (b - 0xd4)) + 1;
      break;
    default:
      h->u = b & 0x0f;
  }
}

static void unpack_signed(uint64_t v, uint8_t bytes, struct pack_head *h) {
  uint64_t sign = (uint64_t)1 << (bytes * 8 - 1);
  h->negative = (v & sign) != 0;
  h->u = v;
  /* Extend the sign: (v ^ sign) - sign, in unsigned arithmetic. */
  uint64_t wide = (v ^ sign) - sign;
  memcpy(&h->i, &wide, sizeof h->i);
}

static double unpack_real(uint64_t v, uint8_t bytes) {
  if (bytes == 8) {
    double d;
    memcpy(&d, &v, sizeof d);
    return d;
  }
  uint32_t v32 = (uint32_t)v;
  float f;
  memcpy(&f, &v32, sizeof f);
  return (double)f;
}

/* The value of a head with a field v of the given size. */
static void unpack_long(uint8_t b, uint64_t v, uint8_t bytes, struct pack_head *h) {
  h->u = v;
  if (h->kind == TM_PACK_INT && b >= 0xd0) unpack_signed(v, bytes, h);
  if (h->kind == TM_PACK_DOUBLE) h->d = unpack_real(v, bytes);
  if (h->kind == TM_PACK_EXT) h->u = v + 1; /* the type byte */
}

/* Decode the next head without consuming it.  False: failed, now or before. */
static bool unpack_head(tm_unpacker *r, struct pack_head *h) {
  memset(h, 0, sizeof *h);
  if (r->status != TM_OK) return false;
  if (r->p == r->end) {
    tm_unpack_fail(r, "ends where a value should be");
    return false;
  }
  uint8_t b = *r->p;
  h->kind = unpack_kind(b);
  if (h->kind == TM_PACK_NONE) {
    tm_unpack_fail(r, "has byte 0xc1, which no value starts with");
    return false;
  }
  uint8_t bytes = b >= 0xc0 && b <= 0xdf ? unpack_field(b) : 0;
  h->size = (uint8_t)(1 + bytes);
  if (unpack_left(r) < h->size) {
    tm_unpack_fail(r, "ends in the middle of a value");
    return false;
  }
  if (bytes)
    unpack_long(b, unpack_big_endian(r->p + 1, bytes), bytes, h);
  else
    unpack_short(b, h);
  return true;
}

/* Decode and consume a head of this kind. */
static bool unpack_expect(tm_unpacker *r, tm_pack_kind kind, const char *reason,
                          struct pack_head *h) {
  if (!unpack_head(r, h)) return false;
  if (h->kind != kind) {
    tm_unpack_fail(r, reason);
    return false;
  }
  r->p += h->size;
  return true;
}

tm_pack_kind tm_unpack_peek(const tm_unpacker *r) {
  if (r->status != TM_OK || r->p == r->end) return TM_PACK_NONE;
  return unpack_kind(*r->p);
}

bool tm_unpack_nil(tm_unpacker *r) {
  if (tm_unpack_peek(r) != TM_PACK_NIL) return false;
  r->p++;
  return true;
}

bool tm_unpack_bool(tm_unpacker *r) {
  struct pack_head h;
  return unpack_expect(r, TM_PACK_BOOL, "lacks a boolean", &h) && h.u;
}

int64_t tm_unpack_int(tm_unpacker *r) {
  struct pack_head h;
  if (!unpack_expect(r, TM_PACK_INT, "lacks an integer", &h)) return 0;
  if (h.negative) return h.i;
  if (h.u > INT64_MAX) {
    tm_unpack_fail(r, "has an integer above 2^63-1");
    return 0;
  }
  return (int64_t)h.u;
}

uint64_t tm_unpack_uint(tm_unpacker *r) {
  struct pack_head h;
  if (!unpack_expect(r, TM_PACK_INT, "lacks an integer", &h)) return 0;
  if (h.negative) {
    tm_unpack_fail(r, "has a negative integer where none may be");
    return 0;
  }
  return h.u;
}

int64_t tm_unpack_range(tm_unpacker *r, int64_t lo, int64_t hi) {
  int64_t v = tm_unpack_int(r);
  if (r->status != TM_OK) return 0;
  if (v < lo || v > hi) {
    tm_unpack_fail(r, "has an integer out of its range");
    return 0;
  }
  return v;
}

double tm_unpack_double(tm_unpacker *r) {
  struct pack_head h;
  if (tm_unpack_peek(r) != TM_PACK_INT)
    return unpack_expect(r, TM_PACK_DOUBLE, "lacks a number", &h) ? h.d : 0;
  if (!unpack_expect(r, TM_PACK_INT, "lacks a number", &h)) return 0;
  return h.negative ? (double)h.i : (double)h.u;
}

/* A run of bytes of this kind, at most max of them (3). */
static const void *unpack_bytes(tm_unpacker *r, tm_pack_kind kind, const char *reason,
                                size_t max, size_t *len) {
  struct pack_head h;
  *len = 0;
  if (!unpack_expect(r, kind, reason, &h)) return NULL;
  if (h.u > max) {
    tm_unpack_fail(r, "has a string longer than allowed");
    return NULL;
  }
  if (h.u > unpack_left(r)) {
    tm_unpack_fail(r, "ends in the middle of a string");
    return NULL;
  }
  const void *p = r->p;
  *len = (size_t)h.u;
  r->p += *len;
  return p;
}

const char *tm_unpack_str(tm_unpacker *r, size_t max, size_t *len) {
  return unpack_bytes(r, TM_PACK_STR, "lacks a string", max, len);
}

const void *tm_unpack_bin(tm_unpacker *r, size_t max, size_t *len) {
  return unpack_bytes(r, TM_PACK_BIN, "lacks binary data", max, len);
}

void tm_unpack_cstr(tm_unpacker *r, char *out, size_t cap) {
  TM_DCHECK(cap > 0);
  size_t len;
  out[0] = '\0';
  const char *s = tm_unpack_str(r, cap - 1, &len);
  if (!s) return;
  if (len && memchr(s, '\0', len)) {
    tm_unpack_fail(r, "has a zero byte within a name");
    return;
  }
  if (len) memcpy(out, s, len);
  out[len] = '\0';
}

/* A count of items, each at least item_bytes long (3). */
static uint32_t unpack_count(tm_unpacker *r, tm_pack_kind kind, const char *reason,
                             uint32_t min, uint32_t max, size_t item_bytes) {
  struct pack_head h;
  if (!unpack_expect(r, kind, reason, &h)) return 0;
  if (h.u < min || h.u > max) {
    tm_unpack_fail(r, "has a list of a length that is not allowed");
    return 0;
  }
  if (h.u > unpack_left(r) / item_bytes) {
    tm_unpack_fail(r, "claims more items than it has bytes");
    return 0;
  }
  return (uint32_t)h.u;
}

uint32_t tm_unpack_array(tm_unpacker *r, uint32_t min, uint32_t max) {
  return unpack_count(r, TM_PACK_ARRAY, "lacks an array", min, max, 1);
}

uint32_t tm_unpack_map(tm_unpacker *r, uint32_t min, uint32_t max) {
  return unpack_count(r, TM_PACK_MAP, "lacks a map", min, max, 2);
}

uint32_t tm_unpack_i64s(tm_unpacker *r, int64_t *v, uint32_t max) {
  uint32_t n = tm_unpack_array(r, 0, max);
  for (uint32_t i = 0; i < n; i++) v[i] = tm_unpack_int(r);
  return r->status == TM_OK ? n : 0;
}

/* Consume a value's head and bytes; *items = how many values are inside it. */
static bool unpack_skip_one(tm_unpacker *r, uint64_t *items) {
  struct pack_head h;
  *items = 0;
  if (!unpack_head(r, &h)) return false;
  r->p += h.size;
  bool bytes = h.kind == TM_PACK_STR || h.kind == TM_PACK_BIN || h.kind == TM_PACK_EXT;
  if (h.kind == TM_PACK_ARRAY) *items = h.u;
  if (h.kind == TM_PACK_MAP) *items = h.u * 2;
  if (*items > unpack_left(r) || (bytes && h.u > unpack_left(r))) {
    tm_unpack_fail(r, "claims more than it has bytes");
    return false;
  }
  if (bytes) r->p += (size_t)h.u;
  return true;
}

void tm_unpack_skip(tm_unpacker *r) {
  enum { DEPTH = 32 };
  uint64_t left[DEPTH + 1] = {1}; /* values still to skip at each depth */
  for (int depth = 0; depth >= 0;) {
    if (left[depth] == 0) {
      depth--;
      continue;
    }
    left[depth]--;
    uint64_t items;
    if (!unpack_skip_one(r, &items)) return;
    if (items == 0) continue;
    if (depth == DEPTH) {
      tm_unpack_fail(r, "is nested more than 32 deep");
      return;
    }
    left[++depth] = items;
  }
}

tm_status tm_unpack_end(tm_unpacker *r, tm_err *err) {
  if (r->status == TM_OK && r->p != r->end)
    tm_unpack_fail(r, "goes on after its last value");
  if (r->status == TM_OK) return TM_OK;
  return tm_fail(err, r->status, "malformed message: it %s (byte %zu)", r->reason,
                 (size_t)(r->p - r->start));
}
