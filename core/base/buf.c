#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"

/*
 * Design.  Capacity doubles, so a run of puts costs a constant per byte.
 *
 * Invariants, asserted by buf_check():
 *   (1) len <= cap, and cap <= max unless max was lowered by the owner.
 *   (2) data is NULL exactly when cap is 0.
 *   (3) A failed call leaves the bytes as they were.
 */
enum { BUF_FIRST = 64 };

static bool buf_check(const tm_buf *b) {
  TM_DCHECK(b->len <= b->cap);                   /* (1) */
  TM_DCHECK((b->data == NULL) == (b->cap == 0)); /* (2) */
  return b->len <= b->cap;
}

void tm_buf_release(tm_buf *b) {
  tm_free(b->data, b->cap);
  b->data = NULL;
  b->len = b->cap = 0;
}

void tm_buf_clear(tm_buf *b) { b->len = 0; }

tm_status tm_buf_reserve(tm_buf *b, size_t more) {
  TM_DCHECK(buf_check(b));
  if (more <= b->cap - b->len) return TM_OK;
  if (b->len > b->max || more > b->max - b->len) return TM_EEXHAUSTED;
  size_t need = b->len + more;
  size_t cap = b->cap ? b->cap : BUF_FIRST;
  while (cap < need) cap = cap > b->max / 2 ? b->max : cap * 2;
  if (cap > b->max) cap = b->max;
  uint8_t *data = tm_realloc(b->data, b->cap, cap);
  if (!data) return TM_ENOMEM;
  b->data = data;
  b->cap = cap;
  return TM_OK;
}

tm_status tm_buf_grow(tm_buf *b, size_t n, void **out) {
  *out = NULL;
  TM_TRY(tm_buf_reserve(b, n));
  *out = b->data ? b->data + b->len : NULL; /* NULL + 0 is undefined in C */
  b->len += n;
  return TM_OK;
}

tm_status tm_buf_put(tm_buf *b, const void *p, size_t n) {
  if (n == 0) return TM_OK;
  TM_TRY(tm_buf_reserve(b, n));
  memcpy(b->data + b->len, p, n);
  b->len += n;
  return TM_OK;
}

tm_status tm_buf_putc(tm_buf *b, char c) { return tm_buf_put(b, &c, 1); }

tm_status tm_buf_puts(tm_buf *b, const char *s) { return tm_buf_put(b, s, strlen(s)); }

tm_status tm_buf_printf(tm_buf *b, const char *fmt, ...) {
  char small[256];
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(small, sizeof small, fmt, ap);
  va_end(ap);
  if (n < 0) return TM_EINVAL;
  size_t len = (size_t)n;
  if (len < sizeof small) return tm_buf_put(b, small, len);

  /* The terminating NUL needs room but is not part of the text. */
  TM_TRY(tm_buf_reserve(b, len + 1));
  va_start(ap, fmt);
  vsnprintf((char *)b->data + b->len, len + 1, fmt, ap);
  va_end(ap);
  b->len += len;
  return TM_OK;
}
