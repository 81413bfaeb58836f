#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/map.h"
#include "base/philox.h"
#include "graph/broadcast.h"
#include "graph/infer.h"
#include "graph/stream.h"
#include "kernel/random.h"
#include "kernel/vmath.h"

/*
 * Random numbers.
 *
 * Design.  graph/stream.h says where numbers without a seed come from.  With a seed
 * they depend on it alone, so the same seed gives the same numbers in every call,
 * closure and task.  No op keeps a counter.
 */

static tm_random_stream random_stream_of(const tm_kctx *c, int32_t seed_attr) {
  tm_random_stream s = tm_random_stream_of(c, seed_attr);
  if (tm_at_has(c->attrs, seed_attr)) s.stream = 0;
  return s;
}

/* --- normal, truncated_normal, uniform, bernoulli: "shape | a, b?, seed, dtype" --- */

static tm_status random_infer(tm_infer *c, tm_dtype t) {
  tm_shape s;
  TM_TRY(tm_infer_shape_attr(c, 0, &s));
  return tm_infer_out(c, t, &s);
}

static tm_status infer_normal(tm_infer *c) {
  tm_dtype t = tm_at_dtype(c->attrs, 4);
  if (!tm_dtype_is_float(t))
    return tm_fail(c->err, TM_EINVAL, "dtype must be a float, not %s",
                   tm_dtype_name(t));
  return random_infer(c, t);
}
static tm_status kernel_normal(tm_kctx *c) {
  tm_random_stream s = random_stream_of(c, 3);
  double mean = tm_at_float(c->attrs, 1), dev = tm_at_float(c->attrs, 2);
  size_t n = (size_t)tm_view_count(&c->out[0]);
  if (c->out[0].dtype == TM_F32)
    tm_k_random_normal_f32(c->out[0].data, n, s.key, s.stream, 0, (float)mean,
                           (float)dev);
  else
    tm_k_random_normal_f64(c->out[0].data, n, s.key, s.stream, 0, mean, dev);
  return TM_OK;
}
static tm_status kernel_truncated(tm_kctx *c) {
  tm_random_stream s = random_stream_of(c, 3);
  double mean = tm_at_float(c->attrs, 1), dev = tm_at_float(c->attrs, 2);
  size_t n = (size_t)tm_view_count(&c->out[0]);
  if (c->out[0].dtype == TM_F32)
    tm_k_random_truncated_f32(c->out[0].data, n, s.key, s.stream, 0, (float)mean,
                              (float)dev);
  else
    tm_k_random_truncated_f64(c->out[0].data, n, s.key, s.stream, 0, mean, dev);
  return TM_OK;
}

static tm_status infer_uniform(tm_infer *c) {
  tm_dtype t = tm_at_dtype(c->attrs, 4);
  double low = tm_at_float(c->attrs, 1);
  if (!tm_dtype_is_number(t))
    return tm_fail(c->err, TM_EINVAL, "dtype must be of numbers, not %s",
                   tm_dtype_name(t));
  if (tm_dtype_is_int(t) && !tm_at_has(c->attrs, 2))
    return tm_fail(c->err, TM_EINVAL, "maxval is needed for integers");
  double high = tm_at_has(c->attrs, 2) ? tm_at_float(c->attrs, 2) : 1;
  if (!isfinite(low) || !isfinite(high) || low > high ||
      (tm_dtype_is_int(t) && low >= high))
    return tm_fail(c->err, TM_EINVAL, "minval %g must be below maxval %g", low, high);
  if (tm_dtype_is_int(t) && (low < -0x1p62 || high > 0x1p62))
    return tm_fail(c->err, TM_EINVAL, "minval and maxval must be within 2^62");
  return random_infer(c, t);
}

static void random_integers(const tm_view *out, tm_random_stream s, int64_t low,
                            uint64_t range) {
  enum { PART = 256 };
  int64_t part[PART], n = tm_view_count(out);
  size_t size = tm_dtype_size(out->dtype);
  for (int64_t i = 0; i < n; i += PART) {
    size_t m = (size_t)(n - i < PART ? n - i : PART);
    tm_k_random_uniform_i64(part, m, s.key, s.stream, (uint64_t)i, low, range);
    tm_k_cast((char *)out->data + (size_t)i * size, tm_k_type_of(out->dtype), part,
              TM_K_I64, m);
  }
}

static tm_status kernel_uniform(tm_kctx *c) {
  tm_random_stream s = random_stream_of(c, 3);
  const tm_view *out = &c->out[0];
  double low = tm_at_float(c->attrs, 1);
  double high = tm_at_has(c->attrs, 2) ? tm_at_float(c->attrs, 2) : 1;
  size_t n = (size_t)tm_view_count(out);
  if (out->dtype == TM_F32)
    tm_k_random_uniform_f32(out->data, n, s.key, s.stream, 0, (float)low, (float)high);
  else if (out->dtype == TM_F64)
    tm_k_random_uniform_f64(out->data, n, s.key, s.stream, 0, low, high);
  else
    random_integers(out, s, (int64_t)ceil(low),
                    (uint64_t)((int64_t)ceil(high) - (int64_t)ceil(low)));
  return TM_OK;
}

static tm_status infer_bernoulli(tm_infer *c) {
  double p = tm_at_float(c->attrs, 1);
  tm_dtype t = tm_at_dtype(c->attrs, 3);
  if (!(p >= 0 && p <= 1))
    return tm_fail(c->err, TM_EINVAL, "p must be in 0..1, not %g", p);
  if (t == TM_STRING)
    return tm_fail(c->err, TM_EINVAL, "dtype must be of numbers or bool, not string");
  return random_infer(c, t);
}
static tm_status kernel_bernoulli(tm_kctx *c) {
  enum { PART = 256 };
  tm_random_stream s = random_stream_of(c, 2);
  const tm_view *out = &c->out[0];
  float u[PART], p = (float)tm_at_float(c->attrs, 1);
  uint8_t b[PART];
  int64_t n = tm_view_count(out);
  size_t size = tm_dtype_size(out->dtype);
  for (int64_t i = 0; i < n; i += PART) {
    size_t m = (size_t)(n - i < PART ? n - i : PART);
    tm_k_random_uniform_f32(u, m, s.key, s.stream, (uint64_t)i, 0, 1);
    tm_k_less[TM_K_F32](b, u, &p, m, TM_K_VS);
    tm_k_cast((char *)out->data + (size_t)i * size, tm_k_type_of(out->dtype), b,
              TM_K_TYPES, m);
  }
  return TM_OK;
}

/* --- categorical: "logits; num_samples | seed, dtype" --- */

static tm_status infer_categorical(tm_infer *c) {
  int64_t n = tm_at_int(c->attrs, 0);
  tm_dtype t = tm_at_dtype(c->attrs, 2);
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  TM_TRY(tm_infer_rank(c, 0, 2));
  if (n < 0) return tm_fail(c->err, TM_EINVAL, "num_samples must not be negative");
  if (t != TM_I64 && t != TM_I32)
    return tm_fail(c->err, TM_EINVAL, "dtype must be int64 or int32, not %s",
                   tm_dtype_name(t));
  if (c->in[0].shape.dim[1] == 0 && c->in[0].shape.dim[0] != 0)
    return tm_fail(c->err, TM_EINVAL, "logits have no classes");
  tm_shape s = tm_shape_of(2, (int64_t[]){c->in[0].shape.dim[0], n});
  return tm_infer_out(c, t, &s);
}

static size_t scratch_categorical(const tm_kctx *c) {
  return (size_t)c->in[0].shape.dim[1] * sizeof(double);
}

/* Running sums of exp(logit - largest) of a row. */
static tm_status random_weights(tm_kctx *c, int64_t row, double *sum) {
  int64_t n = c->in[0].shape.dim[1];
  double top = -(double)INFINITY, total = 0;
  for (int64_t i = 0; i < n; i++) {
    sum[i] = tm_view_get_f64(&c->in[0], row * n + i);
    if (!(sum[i] <= top)) top = sum[i]; /* NaN too */
  }
  if (!isfinite(top))
    return tm_fail(c->err, TM_EINVAL,
                   "logits of row %" PRId64 " have no finite maximum", row);
  for (int64_t i = 0; i < n; i++) sum[i] -= top;
  tm_k_exp_f64(sum, sum, (size_t)n);
  for (int64_t i = 0; i < n; i++) sum[i] = total += sum[i];
  return TM_OK;
}

/* The first class whose running sum is above x. */
static int64_t random_class(const double *sum, int64_t n, double x) {
  int64_t low = 0, high = n - 1;
  while (low < high) {
    int64_t mid = (low + high) / 2;
    if (sum[mid] > x)
      high = mid;
    else
      low = mid + 1;
  }
  return low;
}

static tm_status kernel_categorical(tm_kctx *c) {
  tm_random_stream s = random_stream_of(c, 1);
  double *sum = c->scratch, u;
  int64_t rows = c->in[0].shape.dim[0], n = c->in[0].shape.dim[1];
  int64_t samples = tm_at_int(c->attrs, 0);
  for (int64_t r = 0; r < rows; r++) {
    TM_TRY(random_weights(c, r, sum));
    for (int64_t k = 0; k < samples; k++) {
      int64_t at = r * samples + k;
      tm_k_random_uniform_f64(&u, 1, s.key, s.stream, (uint64_t)at, 0, 1);
      int64_t id = random_class(sum, n, u * sum[n - 1]);
      if (c->out[0].dtype == TM_I64)
        ((int64_t *)c->out[0].data)[at] = id;
      else
        ((int32_t *)c->out[0].data)[at] = (int32_t)id;
    }
  }
  return TM_OK;
}

/* --- shuffle: "x | seed" --- */

static tm_status infer_shuffle(tm_infer *c) {
  TM_TRY(tm_infer_want(c, 0, TM_WANT_NUMBER | TM_WANT_BOOL));
  if (c->in[0].shape.rank == 0)
    return tm_fail(c->err, TM_EINVAL, "x is a scalar, which has no rows to shuffle");
  return tm_infer_out(c, c->in[0].dtype, &c->in[0].shape);
}
static size_t scratch_shuffle(const tm_kctx *c) {
  return (size_t)c->in[0].shape.dim[0] * sizeof(int64_t);
}
/* Fisher and Yates. */
static tm_status kernel_shuffle(tm_kctx *c) {
  tm_random_stream s = random_stream_of(c, 0);
  int64_t n = c->in[0].shape.dim[0], *order = c->scratch;
  size_t row = n ? tm_view_bytes(&c->in[0]) / (size_t)n : 0;
  tm_rng rng;
  tm_rng_init(&rng, s.key, s.stream);
  for (int64_t i = 0; i < n; i++) {
    int64_t j = (int64_t)tm_rng_below(&rng, (uint64_t)i + 1);
    order[i] = order[j];
    order[j] = i;
  }
  for (int64_t i = 0; row && i < n; i++)
    memcpy((char *)c->out[0].data + (size_t)i * row,
           (const char *)c->in[0].data + (size_t)order[i] * row, row);
  return TM_OK;
}

#define NUMBERS \
  "; shape:shape | mean:float=0, stddev:float=1, seed:int?, dtype:dtype=float32"

static const tm_op random_ops[] = {
    {.name = "random.normal",
     .sig = NUMBERS,
     .help = "Numbers of the normal distribution with this mean and deviation.",
     .flags = TM_OP_RANDOM,
     .infer = infer_normal,
     .kernel = kernel_normal},
    {.name = "random.truncated_normal",
     .sig = NUMBERS,
     .help = "Numbers of the normal distribution within 2 deviations of the mean.",
     .flags = TM_OP_RANDOM,
     .infer = infer_normal,
     .kernel = kernel_truncated},
    {.name = "random.uniform",
     .sig = "; shape:shape | minval:float=0, maxval:float?, seed:int?, "
            "dtype:dtype=float32",
     .help = "Numbers from minval up to below maxval (1), all as likely.",
     .flags = TM_OP_RANDOM,
     .infer = infer_uniform,
     .kernel = kernel_uniform},
    {.name = "random.bernoulli",
     .sig = "; shape:shape | p:float=0.5, seed:int?, dtype:dtype=float32",
     .help = "1 with probability p, else 0.",
     .flags = TM_OP_RANDOM,
     .infer = infer_bernoulli,
     .kernel = kernel_bernoulli},
    {.name = "random.categorical",
     .sig = "logits; num_samples:int | seed:int?, dtype:dtype=int64",
     .help =
         "(batch, num_samples) class ids, from 0, drawn by (batch, classes) logits.",
     .flags = TM_OP_RANDOM,
     .infer = infer_categorical,
     .kernel = kernel_categorical,
     .scratch = scratch_categorical},
    {.name = "random.shuffle",
     .sig = "x | seed:int?",
     .help = "The rows of x in random order.",
     .flags = TM_OP_RANDOM,
     .infer = infer_shuffle,
     .kernel = kernel_shuffle,
     .scratch = scratch_shuffle},
};

const tm_op_group tm_ops_random = {random_ops, TM_COUNT(random_ops)};
