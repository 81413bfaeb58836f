#include "ps/init.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/philox.h"

/*
 * Design.  Element e of a variable draws from the Philox block (seed, INIT_STREAM, e)
 * of its own, or from further blocks of the same element when it is redrawn, so its
 * value depends on nothing but seed and e.  Values are computed in double and rounded
 * to the dtype.
 *
 *   uniform           word 0: a + (b - a) * u, u in [0, 1) with 24 bits (float32) or
 *                     words 0 and 1 with 53 bits (float64); integers: a + below(b - a)
 *   normal            Box-Muller (cosine branch) on words 0 and 1
 *   truncated_normal  the same on words (0, 1), (2, 3), then the next block ... until
 *                     it is within two standard deviations
 */
enum { INIT_REDRAWS = 64 };
#define INIT_STREAM 0x696e6974ull /* "init" */

static double init_normal_pair(uint32_t a, uint32_t b) {
  double u = ((double)a + 0.5) * 0x1p-32; /* in (0, 1): the logarithm is finite */
  double v = ((double)b + 0.5) * 0x1p-32;
  return sqrt(-2 * log(u)) * cos(6.283185307179586476925286766559 * v);
}

static double init_normal(uint64_t seed, uint64_t e) {
  uint32_t w[4];
  tm_philox(seed, INIT_STREAM, e, w);
  return init_normal_pair(w[0], w[1]);
}

/* Block k of element e; k = 0 is the one that normal uses. */
static void init_block(uint64_t seed, uint64_t e, uint64_t k, uint32_t w[4]) {
  tm_philox(seed, INIT_STREAM + (k << 32), e, w);
}

static double init_truncated(uint64_t seed, uint64_t e) {
  for (uint64_t k = 0; k < INIT_REDRAWS; k++) {
    uint32_t w[4];
    init_block(seed, e, k, w);
    for (int i = 0; i < 4; i += 2) {
      double z = init_normal_pair(w[i], w[i + 1]);
      if (fabs(z) <= 2.0) return z;
    }
  }
  return 0.0; /* chance: 0.0455 ^ 128 */
}

static double init_unit(uint64_t seed, uint64_t e, tm_dtype t) {
  uint32_t w[4];
  tm_philox(seed, INIT_STREAM, e, w);
  if (t != TM_F64) return (double)(w[0] >> 8) * 0x1p-24;
  return (double)((((uint64_t)w[0] << 32) | w[1]) >> 11) * 0x1p-53;
}

static double init_value(const tm_init *in, int kind, uint64_t e, tm_dtype t) {
  switch (kind) {
    case 'u': {
      double x = in->a + (in->b - in->a) * init_unit(in->seed, e, t);
      return tm_dtype_is_float(t) ? x : floor(x);
    }
    case 'n':
      return in->a + in->b * init_normal(in->seed, e);
    case 't':
      return in->a + in->b * init_truncated(in->seed, e);
    case '1':
      return 1.0;
    case 'c':
      return in->a;
    default:
      return 0.0;
  }
}

static int init_kind(const char *kind) {
  static const struct {
    const char *name;
    int kind;
  } known[] = {{"zeros", '0'},   {"ones", '1'},   {"constant", 'c'},
               {"uniform", 'u'}, {"normal", 'n'}, {"truncated_normal", 't'},
               {"value", 'v'}};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
    if (strcmp(kind, known[i].name) == 0) return known[i].kind;
  return 0;
}

static void init_numbers(const tm_init *in, int kind, int64_t first, tm_view *dst) {
  int64_t n = tm_view_count(dst);
  /* By way of int64: a value out of the small type's range wraps. */
#define FILL(E, C, WAY)                                                    \
  case TM_##E:                                                             \
    for (int64_t k = 0; k < n; k++)                                        \
      ((C *)dst->data)[k] =                                                \
          (C)(WAY)init_value(in, kind, (uint64_t)(first + k), dst->dtype); \
    break;
  switch (dst->dtype) {
    FILL(F32, float, double)
    FILL(F64, double, double)
    FILL(I32, int32_t, int64_t)
    FILL(I64, int64_t, int64_t)
    FILL(U8, uint8_t, int64_t)
    case TM_BOOL:
      for (int64_t k = 0; k < n; k++)
        ((uint8_t *)dst->data)[k] =
            fabs(init_value(in, kind, (uint64_t)(first + k), TM_F32)) > 0.0;
      break;
    case TM_STRING:
    case TM_DTYPE_NONE:
      break;
  }
#undef FILL
}

static tm_status init_copy(const tm_init *in, tm_view *dst, tm_err *err) {
  char a[96], b[96];
  if (!in->value) return tm_fail(err, TM_EINVAL, "initial value: none was sent");
  const tm_view *v = &in->value->v;
  if (v->dtype != dst->dtype || !tm_shape_equal(&v->shape, &dst->shape))
    return tm_fail(err, TM_EINVAL, "initial value is %s %s, the shard is %s %s",
                   tm_dtype_name(v->dtype), tm_shape_text(&v->shape, a, sizeof a),
                   tm_dtype_name(dst->dtype), tm_shape_text(&dst->shape, b, sizeof b));
  size_t bytes = tm_view_bytes(dst);
  if (bytes) memcpy(dst->data, v->data, bytes);
  return TM_OK;
}

tm_status tm_init_fill(const tm_init *in, int64_t first, tm_view *dst, tm_err *err) {
  int kind = init_kind(in->kind);
  if (!kind)
    return tm_fail(
        err, TM_EINVAL,
        "initializer \"%s\" is not known: use zeros, ones, constant, uniform, "
        "normal, truncated_normal or a value",
        in->kind);
  if (!tm_dtype_is_number(dst->dtype) && dst->dtype != TM_BOOL)
    return tm_fail(err, TM_EINVAL, "a variable of dtype %s cannot live on a ps",
                   tm_dtype_name(dst->dtype));
  if (kind == 'v') return init_copy(in, dst, err);
  if (!tm_dtype_is_float(dst->dtype) &&
      (kind == 'n' || kind == 't' || !(fabs(in->a) <= 0x1p53) ||
       !(fabs(in->b) <= 0x1p53)))
    return tm_fail(err, TM_EINVAL, "initializer \"%s\" does not make %s values",
                   in->kind, tm_dtype_name(dst->dtype));
  if (kind == '0') {
    memset(dst->data, 0, tm_view_bytes(dst));
    return TM_OK;
  }
  init_numbers(in, kind, first, dst);
  return TM_OK;
}
