#include <math.h>

#include "base/philox.h"
#include "kernel/random.h"
#include "kernel/reduce.h"
#include "test.h"

/*
 * Reductions and scans against plain loops at every length 0..300, random numbers
 * against tm_philox and the moments of their distributions.
 */
enum { MOST = 300, INNER = 3 };

static float x32[MOST * INNER * 2];
static double x64[MOST * INNER * 2];
static int32_t i32[MOST * INNER * 2];

static void fill(void) {
  for (int i = 0; i < MOST * INNER * 2; i++) {
    x32[i] = (float)((i * 37) % 101 - 50) * 0.13F;
    x64[i] = (double)x32[i];
    i32[i] = (i * 37) % 101 - 50;
  }
}

static void sums_and_products_match_a_plain_loop(void **state) {
  (void)state;
  fill();
  for (size_t n = 0; n <= MOST; n++) {
    for (size_t inner = 1; inner <= INNER; inner++) {
      float o[2 * INNER];
      int32_t oi[2 * INNER];
      tm_k_sum[TM_K_F32](o, x32, 2, n, inner);
      tm_k_sum[TM_K_I32](oi, i32, 2, n, inner);
      for (size_t r = 0; r < 2; r++)
        for (size_t k = 0; k < inner; k++) {
          double sum = 0, most = 0;
          int32_t isum = 0;
          for (size_t i = 0; i < n; i++) {
            size_t at = (r * n + i) * inner + k;
            sum += x64[at];
            most += fabs(x64[at]);
            isum += i32[at];
          }
          assert_true(fabs((double)o[r * inner + k] - sum) <= 2e-6 * most);
          assert_int_equal(oi[r * inner + k], isum);
        }
    }
  }
}

static void extremes_match_a_plain_loop(void **state) {
  (void)state;
  fill();
  for (size_t n = 1; n <= MOST; n++)
    for (size_t inner = 1; inner <= INNER; inner++) {
      float low[2 * INNER], high[2 * INNER];
      int64_t at_low[2 * INNER], at_high[2 * INNER];
      tm_k_min[TM_K_F32](low, x32, 2, n, inner);
      tm_k_max[TM_K_F32](high, x32, 2, n, inner);
      tm_k_argmin[TM_K_F32](at_low, x32, 2, n, inner);
      tm_k_argmax[TM_K_F32](at_high, x32, 2, n, inner);
      for (size_t r = 0; r < 2; r++)
        for (size_t k = 0; k < inner; k++) {
          const float *x = x32 + r * n * inner + k;
          size_t l = 0, h = 0, o = r * inner + k;
          for (size_t i = 1; i < n; i++) {
            if (x[i * inner] < x[l * inner]) l = i;
            if (x[i * inner] > x[h * inner]) h = i;
          }
          assert_true(low[o] == x[l * inner] && high[o] == x[h * inner]);
          assert_int_equal(at_low[o], l);
          assert_int_equal(at_high[o], h);
        }
    }
}

static void nan_is_every_extreme(void **state) {
  (void)state;
  for (size_t at = 0; at < 40; at++) {
    float x[40], o;
    int64_t place;
    for (size_t i = 0; i < 40; i++) x[i] = (float)i;
    x[at] = NAN;
    tm_k_max[TM_K_F32](&o, x, 1, 40, 1);
    assert_true(isnan(o));
    tm_k_min[TM_K_F32](&o, x, 1, 40, 1);
    assert_true(isnan(o));
    tm_k_argmax[TM_K_F32](&place, x, 1, 40, 1);
    assert_int_equal(place, at);
  }
}

static void sums_of_many_floats_stay_exact(void **state) {
  (void)state;
  enum { N = 1 << 16 };
  float *x = test_malloc(N * sizeof *x), o[4];
  for (int i = 0; i < N; i++) x[i] = 0.1F;
  tm_k_sum[TM_K_F32](o, x, 1, N, 1);
  assert_true(fabs((double)o[0] / N - 0.1) < 1e-6);
  tm_k_sum[TM_K_F32](o, x, 1, N / 4, 4);
  for (int k = 0; k < 4; k++) assert_true(fabs((double)o[k] * 4 / N - 0.1) < 1e-6);
  test_free(x);
}

static void logsumexp_and_variance_match_their_definition(void **state) {
  (void)state;
  fill();
  for (size_t n = 1; n <= MOST; n++) {
    double o[2], v[2];
    tm_k_logsumexp_f64(o, x64, 2, n);
    tm_k_var_f64(v, x64, 2, n);
    for (size_t r = 0; r < 2; r++) {
      double sum = 0, mean = 0, var = 0;
      for (size_t i = 0; i < n; i++) {
        sum += exp(x64[r * n + i]);
        mean += x64[r * n + i] / (double)n;
      }
      for (size_t i = 0; i < n; i++) {
        double d = x64[r * n + i] - mean;
        var += d * d / (double)n;
      }
      assert_true(fabs(o[r] - log(sum)) < 1e-12 * (1 + fabs(o[r])));
      assert_true(fabs(v[r] - var) < 1e-12 * (1 + var));
    }
  }
  double inf[2] = {(double)INFINITY, 1}, o;
  tm_k_logsumexp_f64(&o, inf, 1, 2);
  assert_true(isinf(o) && o > 0);
  inf[0] = inf[1] = -(double)INFINITY;
  tm_k_logsumexp_f64(&o, inf, 1, 2);
  assert_true(isinf(o) && o < 0);
}

static void scans_match_a_plain_loop(void **state) {
  (void)state;
  fill();
  static int32_t o[MOST * INNER * 2];
  for (size_t n = 0; n <= MOST; n++)
    for (size_t inner = 1; inner <= INNER; inner++)
      for (int how = 0; how < 4; how++) {
        bool exclusive = how & 1, reverse = how >> 1;
        tm_k_cumsum[TM_K_I32](o, i32, 2, n, inner, exclusive, reverse);
        for (size_t r = 0; r < 2; r++)
          for (size_t k = 0; k < inner; k++) {
            int32_t sum = 0;
            for (size_t j = 0; j < n; j++) {
              size_t i = reverse ? n - 1 - j : j, at = (r * n + i) * inner + k;
              if (!exclusive) sum += i32[at];
              assert_int_equal(o[at], sum);
              if (exclusive) sum += i32[at];
            }
          }
      }
}

static void products_of_the_others_need_no_division(void **state) {
  (void)state;
  double x[] = {2, 0, 3, 4, 0, 0}, o[6];
  tm_k_prod_others_f64(o, x, 2, 3);
  const double want[] = {0, 6, 0, 0, 0, 0};
  assert_memory_equal(o, want, sizeof o);
}

/* --- random numbers --- */

static void words_are_those_of_philox_from_any_place_on(void **state) {
  (void)state;
  uint32_t all[1024], part[1024];
  for (uint64_t b = 0; b < 256; b++) tm_philox(7, 9, b, all + 4 * b);
  for (size_t first = 0; first < 100; first += 7)
    for (size_t n = 0; n <= MOST; n += 11) {
      tm_k_random_words(part, n, 7, 9, first);
      if (n) assert_memory_equal(part, all + first, n * sizeof *part);
    }
}

static void numbers_are_the_same_in_any_sharding(void **state) {
  (void)state;
  enum { N = 1000 };
  float u[N], v[N];
  double d[N], e[N];
  int64_t k[N], l[N];
#define SPLIT(make, a, b)                                                 \
  make(a, N, 0);                                                          \
  for (size_t i = 0, step = 1; i < N; i += step, step = step * 2 % 311) { \
    size_t n = step < N - i ? step : N - i;                               \
    make(b + i, n, i);                                                    \
  }                                                                       \
  assert_memory_equal(a, b, sizeof a);
#define UNIFORM(o, n, first)   tm_k_random_uniform_f32(o, n, 1, 2, first, -1, 3)
#define NORMAL(o, n, first)    tm_k_random_normal_f32(o, n, 1, 2, first, 0, 1)
#define CUT(o, n, first)       tm_k_random_truncated_f32(o, n, 1, 2, first, 0, 1)
#define UNIFORM64(o, n, first) tm_k_random_uniform_f64(o, n, 1, 2, first, -1, 3)
#define NORMAL64(o, n, first)  tm_k_random_normal_f64(o, n, 1, 2, first, 0, 1)
#define INTS(o, n, first)      tm_k_random_uniform_i64(o, n, 1, 2, first, -5, 11)
  SPLIT(UNIFORM, u, v)
  SPLIT(NORMAL, u, v)
  SPLIT(CUT, u, v)
  SPLIT(UNIFORM64, d, e)
  SPLIT(NORMAL64, d, e)
  SPLIT(INTS, k, l)
}

static void moments(const float *x, size_t n, double *mean, double *var) {
  *mean = *var = 0;
  for (size_t i = 0; i < n; i++) *mean += (double)x[i] / (double)n;
  for (size_t i = 0; i < n; i++)
    *var += ((double)x[i] - *mean) * ((double)x[i] - *mean) / (double)n;
}

static void distributions_have_their_moments(void **state) {
  (void)state;
  enum { N = 100000 };
  float *x = test_malloc(N * sizeof *x);
  double mean, var, tail = 0;
  tm_k_random_uniform_f32(x, N, 3, 4, 0, 2, 4);
  moments(x, N, &mean, &var);
  assert_true(fabs(mean - 3) < 0.01 && fabs(var - 4.0 / 12) < 0.01);
  tm_k_random_normal_f32(x, N, 3, 4, 0, 1, 2);
  moments(x, N, &mean, &var);
  for (int i = 0; i < N; i++) tail += fabs((double)x[i] - 1) > 4;
  assert_true(fabs(mean - 1) < 0.03 && fabs(var - 4) < 0.06);
  assert_true(fabs(tail / N - 0.0455) < 0.003);
  tm_k_random_truncated_f32(x, N, 3, 4, 0, 0, 1);
  moments(x, N, &mean, &var);
  for (int i = 0; i < N; i++) assert_true(fabsf(x[i]) <= 2.00001F);
  assert_true(fabs(mean) < 0.01 && fabs(var - 0.7737) < 0.01); /* scipy's truncnorm */
  test_free(x);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sums_and_products_match_a_plain_loop),
      cmocka_unit_test(extremes_match_a_plain_loop),
      cmocka_unit_test(nan_is_every_extreme),
      cmocka_unit_test(sums_of_many_floats_stay_exact),
      cmocka_unit_test(logsumexp_and_variance_match_their_definition),
      cmocka_unit_test(scans_match_a_plain_loop),
      cmocka_unit_test(products_of_the_others_need_no_division),
      cmocka_unit_test(words_are_those_of_philox_from_any_place_on),
      cmocka_unit_test(numbers_are_the_same_in_any_sharding),
      cmocka_unit_test(distributions_have_their_moments),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
