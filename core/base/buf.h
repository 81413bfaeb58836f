/*
 * buf.h - a growable run of bytes with an upper bound.
 *
 *     tm_buf b = TM_BUF_INIT(1 << 20);
 *     TM_TRY(tm_buf_put(&b, data, len));
 *     ... b.data, b.len ...
 *     tm_buf_release(&b);
 *
 * Ownership: the caller's struct; release frees the bytes.
 * Threads:   one at a time.
 */
#ifndef TM_BASE_BUF_H
#define TM_BASE_BUF_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct tm_buf {
  uint8_t *data;
  size_t len;
  size_t cap;
  size_t max; /* growth past this is TM_EEXHAUSTED */
} tm_buf;

#define TM_BUF_INIT(max_bytes) \
  { NULL, 0, 0, (max_bytes) }

/* Return a non-OK status of expr from the current function. */
#define TM_TRY(expr)                          \
  do {                                        \
    tm_status tm_try_s_ = (expr);             \
    if (tm_try_s_ != TM_OK) return tm_try_s_; \
  } while (0)

void tm_buf_release(tm_buf *b); /* keeps max; twice is harmless */
void tm_buf_clear(tm_buf *b);   /* len = 0, keeps memory */
TM_CHECKED tm_status tm_buf_reserve(tm_buf *b, size_t more);
TM_CHECKED tm_status tm_buf_put(tm_buf *b, const void *p, size_t n);
TM_CHECKED tm_status tm_buf_putc(tm_buf *b, char c);
TM_CHECKED tm_status tm_buf_puts(tm_buf *b, const char *s);
TM_CHECKED tm_status tm_buf_printf(tm_buf *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Append n bytes and give their address (valid until the next call). */
TM_CHECKED tm_status tm_buf_grow(tm_buf *b, size_t n, void **out);

#endif
