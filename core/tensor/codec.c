#include "tensor/codec.h"

#include <inttypes.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"

/*
 * Design.  Numbers travel as they lie in memory (dtype.c refuses big-endian
 * machines).  Bools are made 0 or 1 on arrival, because kernels rely on it.  Of a
 * string tensor every length is checked against the bytes at hand before anything is
 * allocated.
 */

/* Strings carry a 4-byte length each on the wire. */
enum { LEN_BYTES = 4 };

static size_t codec_elem(tm_dtype t) {
  return t == TM_STRING ? LEN_BYTES : tm_dtype_size(t);
}

uint64_t tm_payload_bytes(const tm_view *v) {
  int64_t n = tm_view_count(v);
  uint64_t bytes = (uint64_t)n * codec_elem(v->dtype);
  if (v->dtype != TM_STRING) return bytes;
  const tm_str *s = v->data;
  for (int64_t i = 0; i < n; i++) bytes += s[i].n;
  return bytes;
}

static void codec_pack_type(tm_packer *w, const tm_view *v) {
  tm_pack_array(w, 3);
  tm_pack_int(w, v->dtype);
  tm_pack_i64s(w, v->shape.dim, (uint32_t)v->shape.rank);
}

void tm_pack_head(tm_packer *w, const tm_view *v) {
  codec_pack_type(w, v);
  tm_pack_uint(w, tm_payload_bytes(v));
}

/* dtype and shape; leaves the third item of the array. */
static void codec_unpack_type(tm_unpacker *r, tm_tensor_head *h) {
  memset(h, 0, sizeof *h);
  tm_unpack_array(r, 3, 3);
  h->dtype = (tm_dtype)tm_unpack_range(r, TM_F32, TM_STRING);
  h->shape.rank = (int32_t)tm_unpack_i64s(r, h->shape.dim, TM_MAX_RANK);
  if (r->status) return;
  if (!tm_shape_known(&h->shape) ||
      tm_shape_check(&h->shape, (int64_t)tm_dtype_size(h->dtype), NULL))
    tm_unpack_fail(r, "the shape of a tensor is out of range");
}

static void codec_check_bytes(tm_unpacker *r, uint64_t max, tm_tensor_head *h) {
  if (r->status) return;
  uint64_t least = (uint64_t)tm_shape_count(&h->shape) * codec_elem(h->dtype);
  bool fits =
      h->dtype == TM_STRING ? h->payload_bytes >= least : h->payload_bytes == least;
  if (!fits)
    tm_unpack_fail(r, "the payload of a tensor does not fit its shape");
  else if (h->payload_bytes > max)
    tm_unpack_fail(r, "the payload of a tensor is above the limit");
}

void tm_unpack_head(tm_unpacker *r, uint64_t max, tm_tensor_head *h) {
  codec_unpack_type(r, h);
  h->payload_bytes = tm_unpack_uint(r);
  codec_check_bytes(r, max, h);
}

static tm_status codec_put_strings(tm_buf *buf, const tm_str *s, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    uint8_t len[LEN_BYTES];
    if (s[i].n > UINT32_MAX) return TM_EEXHAUSTED;
    tm_put32(len, (uint32_t)s[i].n);
    TM_TRY(tm_buf_put(buf, len, sizeof len));
  }
  for (int64_t i = 0; i < n; i++)
    if (s[i].n) TM_TRY(tm_buf_put(buf, s[i].p, s[i].n));
  return TM_OK;
}

tm_status tm_payload_put(tm_buf *buf, const tm_view *v) {
  size_t bytes = tm_view_bytes(v);
  if (v->dtype == TM_STRING) return codec_put_strings(buf, v->data, tm_view_count(v));
  return bytes ? tm_buf_put(buf, v->data, bytes) : TM_OK;
}

static tm_status codec_get_strings(const tm_tensor_head *h, const uint8_t *p, size_t n,
                                   tm_tensor **out, tm_err *err) {
  size_t count = (size_t)tm_shape_count(&h->shape);
  size_t left = n - count * LEN_BYTES;
  for (size_t i = 0; i < count; i++) {
    uint32_t len = tm_get32(p + i * LEN_BYTES);
    if (len > left)
      return tm_fail(err, TM_EDATALOSS,
                     "string %zu of a tensor reaches past the payload", i);
    left -= len;
  }
  if (left)
    return tm_fail(err, TM_EDATALOSS, "%zu bytes left over after a tensor's strings",
                   left);
  if (count == 0) return tm_tensor_new(TM_STRING, &h->shape, out, err);
  tm_str *s = tm_calloc(count, sizeof *s);
  if (!s) return tm_nomem(err, "reading a string tensor");
  const char *at = (const char *)p + count * LEN_BYTES;
  for (size_t i = 0; i < count; i++) {
    s[i] = (tm_str){at, tm_get32(p + i * LEN_BYTES)};
    at += s[i].n;
  }
  tm_status st = tm_tensor_strings(&h->shape, s, out, err);
  tm_free(s, count * sizeof *s);
  return st;
}

tm_status tm_payload_get(const tm_tensor_head *h, const void *p, size_t n,
                         tm_tensor **out, tm_err *err) {
  *out = NULL;
  if (n != h->payload_bytes)
    return tm_fail(err, TM_EDATALOSS,
                   "a tensor's payload has %zu bytes, its head says %" PRIu64, n,
                   h->payload_bytes);
  if (h->dtype == TM_STRING) return codec_get_strings(h, p, n, out, err);
  TM_TRY(tm_tensor_new(h->dtype, &h->shape, out, err));
  uint8_t *dst = (*out)->v.data;
  if (n) memcpy(dst, p, n);
  if (h->dtype == TM_BOOL)
    for (size_t i = 0; i < n; i++) dst[i] = dst[i] != 0;
  return TM_OK;
}

void tm_pack_tensor(tm_packer *w, const tm_view *v) {
  codec_pack_type(w, v);
  if (v->dtype != TM_STRING) {
    tm_pack_bin(w, v->data, tm_view_bytes(v));
    return;
  }
  tm_buf b = TM_BUF_INIT(UINT32_MAX);
  tm_status s = tm_payload_put(&b, v);
  if (s == TM_OK)
    tm_pack_bin(w, b.data, b.len);
  else if (w->status == TM_OK)
    w->status = s;
  tm_buf_release(&b);
}

tm_status tm_unpack_tensor(tm_unpacker *r, size_t max, tm_tensor **out, tm_err *err) {
  tm_tensor_head h;
  size_t n = 0;
  *out = NULL;
  codec_unpack_type(r, &h);
  const void *p = tm_unpack_bin(r, max, &n);
  h.payload_bytes = n;
  codec_check_bytes(r, max, &h);
  if (r->status)
    return tm_fail(err, r->status, "a tensor cannot be read: %s",
                   r->reason ? r->reason : tm_status_name(r->status));
  return tm_payload_get(&h, p, n, out, err);
}
