#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tensor/tensor.h"

/*
 * Design.  Recursion over axes (at most TM_MAX_RANK deep).  Where a tensor is past
 * `edge_after` elements, an axis longer than 2 * EDGE shows its ends alone, so the
 * text has at most (2 * EDGE + 1) parts an axis.
 */
enum { EDGE = 3, STRING_SHOWN = 200 };

struct text_job {
  const tm_view *v;
  tm_buf *out;
  bool cut;
};

/* The shortest of 6..17 digits that reads back as the same number. */
static tm_status text_float(tm_buf *out, double x, bool single) {
  char buf[40];
  if (isnan(x)) return tm_buf_puts(out, "nan");
  if (isinf(x)) return tm_buf_puts(out, x > 0 ? "inf" : "-inf");
  for (int digits = 6; digits <= 17; digits++) {
    snprintf(buf, sizeof buf, "%.*g", digits, x);
    double back = strtod(buf, NULL);
    bool same = single ? (float)back == (float)x : back == x;
    if (same) break;
  }
  return tm_buf_puts(out, buf);
}

static tm_status text_string(tm_buf *out, tm_str s) {
  size_t n = s.n < STRING_SHOWN ? s.n : STRING_SHOWN;
  TM_TRY(tm_buf_putc(out, '"'));
  for (size_t i = 0; i < n; i++) {
    unsigned char c = (unsigned char)s.p[i];
    if (c == '"' || c == '\\')
      TM_TRY(tm_buf_printf(out, "\\%c", c));
    else if (c == '\n')
      TM_TRY(tm_buf_puts(out, "\\n"));
    else if (c < 32 || c == 127)
      TM_TRY(tm_buf_printf(out, "\\%03u", c));
    else
      TM_TRY(tm_buf_putc(out, (char)c));
  }
  return tm_buf_puts(out, s.n > n ? "...\"" : "\"");
}

static tm_status text_element(struct text_job *j, int64_t i) {
  switch (j->v->dtype) {
    case TM_F32:
    case TM_F64:
      return text_float(j->out, tm_view_get_f64(j->v, i), j->v->dtype == TM_F32);
    case TM_BOOL:
      return tm_buf_puts(j->out, tm_view_get_i64(j->v, i) ? "true" : "false");
    case TM_STRING:
      return text_string(j->out, ((const tm_str *)j->v->data)[i]);
    default:
      return tm_buf_printf(j->out, "%" PRId64, tm_view_get_i64(j->v, i));
  }
}

/* What stands between two parts of an axis: ", " in a row, else line breaks, one a
 * closed bracket, and blanks up to the depth. */
static tm_status text_gap(struct text_job *j, int32_t axis) {
  int32_t below = j->v->shape.rank - axis - 1;
  if (below == 0) return tm_buf_puts(j->out, ", ");
  TM_TRY(tm_buf_putc(j->out, ','));
  for (int32_t i = 0; i < below; i++) TM_TRY(tm_buf_putc(j->out, '\n'));
  for (int32_t i = 0; i <= axis; i++) TM_TRY(tm_buf_putc(j->out, ' '));
  return TM_OK;
}

static tm_status text_axis(struct text_job *j, int32_t axis, int64_t at) {
  const tm_shape *s = &j->v->shape;
  if (axis == s->rank) return text_element(j, at);
  int64_t step = 1;
  for (int32_t i = axis + 1; i < s->rank; i++) step *= s->dim[i];
  bool cut = j->cut && s->dim[axis] > 2 * EDGE;
  TM_TRY(tm_buf_putc(j->out, '['));
  for (int64_t i = 0; i < s->dim[axis]; i++) {
    if (i) TM_TRY(text_gap(j, axis));
    if (cut && i == EDGE) {
      TM_TRY(tm_buf_puts(j->out, "..."));
      i = s->dim[axis] - EDGE - 1;
      continue;
    }
    TM_TRY(text_axis(j, axis + 1, at + i * step));
  }
  return tm_buf_putc(j->out, ']');
}

tm_status tm_tensor_text(const tm_view *v, int64_t edge_after, tm_buf *out) {
  char text[128];
  struct text_job j = {v, out, tm_view_count(v) > edge_after};
  if (tm_view_count(v) > 0)
    TM_TRY(text_axis(&j, 0, 0));
  else
    TM_TRY(tm_buf_puts(out, "[]"));
  return tm_buf_printf(out, "\n%s %s", tm_shape_text(&v->shape, text, sizeof text),
                       tm_dtype_name(v->dtype));
}
