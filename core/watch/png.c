#include "watch/png.h"

#include <string.h>
#include <zlib.h>

#include "base/mem.h"

/*
 * Design.  Signature, IHDR, one IDAT, IEND.  zlib does the work: a PNG is its stream
 * with names and CRC-32s around it.  Every row has filter 0 (none): logged images are
 * small, and speed matters more than their last tenth.
 */
static void png_put32(uint8_t *p, uint32_t v) {
  for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> (24 - 8 * i));
}

/* Length, name, bytes, CRC of name and bytes. */
static tm_status png_chunk(tm_buf *out, const char *name, const uint8_t *p, size_t n) {
  uint8_t head[8], tail[4];
  png_put32(head, (uint32_t)n);
  memcpy(head + 4, name, 4);
  uLong crc = crc32(0, head + 4, 4);
  if (n) crc = crc32(crc, p, (uInt)n);
  png_put32(tail, (uint32_t)crc);
  TM_TRY(tm_buf_put(out, head, sizeof head));
  if (n) TM_TRY(tm_buf_put(out, p, n));
  return tm_buf_put(out, tail, sizeof tail);
}

static tm_status png_rows(const uint8_t *pixels, size_t height, size_t row,
                          tm_buf *out) {
  for (size_t y = 0; y < height; y++) {
    TM_TRY(tm_buf_putc(out, 0)); /* filter: none */
    TM_TRY(tm_buf_put(out, pixels + y * row, row));
  }
  return TM_OK;
}

static tm_status png_deflate(const tm_buf *raw, tm_buf *out) {
  void *p;
  uLongf n = compressBound((uLong)raw->len);
  TM_TRY(tm_buf_grow(out, n, &p));
  if (compress2(p, &n, raw->data, (uLong)raw->len, 6) != Z_OK) return TM_ENOMEM;
  out->len = n;
  return TM_OK;
}

static tm_status png_write(uint32_t height, uint32_t width, uint32_t channels,
                           const tm_buf *packed, tm_buf *out) {
  static const uint8_t kinds[] = {0, 0, 4, 2, 6};
  uint8_t head[13] = {0};
  png_put32(head, width);
  png_put32(head + 4, height);
  head[8] = 8; /* bits */
  head[9] = kinds[channels];
  TM_TRY(tm_buf_put(out, "\x89PNG\r\n\x1a\n", 8));
  TM_TRY(png_chunk(out, "IHDR", head, sizeof head));
  TM_TRY(png_chunk(out, "IDAT", packed->data, packed->len));
  return png_chunk(out, "IEND", NULL, 0);
}

tm_status tm_png_encode(const uint8_t *pixels, uint32_t height, uint32_t width,
                        uint32_t channels, tm_buf *out) {
  size_t row, size, before = out->len;
  if (!tm_mul_size(width, channels, &row) || !tm_mul_size(height, row + 1, &size))
    return TM_EEXHAUSTED;
  tm_buf raw = TM_BUF_INIT(out->max), packed = TM_BUF_INIT(2 * out->max);
  tm_status s = size > out->max ? TM_EEXHAUSTED : tm_buf_reserve(&raw, size);
  if (s == TM_OK) s = png_rows(pixels, height, row, &raw);
  if (s == TM_OK) s = png_deflate(&raw, &packed);
  if (s == TM_OK) s = png_write(height, width, channels, &packed, out);
  if (s) out->len = before;
  tm_buf_release(&raw);
  tm_buf_release(&packed);
  return s;
}
