/* Convolutions, pools and normalization by batch: ops against TensorFlow and NumPy,
 * gradients and gradients of gradients against differences, kernels against plain
 * loops. */
#include "graph_cases.h"
#include "kernel/conv.h"
#include "kernel/pooling.h"

static const struct graph_case conv_cases[] = {
#include "../fixtures/graph_ops_conv.inc"
};

static const struct graph_case pool_cases[] = {
#include "../fixtures/graph_ops_pool.inc"
};

static const struct graph_case batchnorm_cases[] = {
#include "../fixtures/graph_ops_batchnorm.inc"
};

static const double some[700] = {1};
#define F32(rank, ...) \
  { TM_F32, rank, {__VA_ARGS__}, some, NULL }
#define I64(rank, ...) \
  { TM_I64, rank, {__VA_ARGS__}, some, NULL }

#define BAD(op, attrs, a, b, text) \
  { op, attrs, 2, {a, b}, TM_EINVAL, text }
#define BAD3(op, attrs, a, b, c, text) \
  { op, attrs, 3, {a, b, c}, TM_EINVAL, text }
#define X4 F32(4, 1, 4, 5, 2)
#define F4 F32(4, 3, 3, 2, 4)

static const struct bad_case bad[] = {
    BAD("nn.conv2d", "", X4, F32(4, 3, 3, 3, 4),
        "channels differ: x has shape (1, 4, 5, 2), filters have shape (3, 3, 3, 4)"),
    BAD("nn.conv2d", "", F32(3, 4, 5, 2), F4, "x must be (batch, height, width"),
    BAD("nn.conv1d", "", X4, F4, "x must be (batch, steps, channels)"),
    BAD("nn.conv2d", "", X4, F32(4, 5, 3, 2, 4),
        "window of 5 does not fit into an axis"),
    BAD("nn.conv2d", "dilations=2", X4, F4, "a window of 5"),
    BAD("nn.conv2d", "padding=full", X4, F4, "must be \"same\" or \"valid\""),
    BAD("nn.conv2d", "strides=0", X4, F4, "strides is 0"),
    BAD("nn.conv2d", "strides=1,2,3", X4, F4, "strides has 3 numbers"),
    BAD("nn.conv2d", "strides=2,1,1,1", X4, F4, "batch and channels"),
    BAD("nn.conv2d", "groups=0", X4, F4, "groups is 0"),
    BAD("nn.conv2d", "groups=2", X4, F4, "not groups times"),
    BAD("nn.conv2d", "groups=2", X4, F32(4, 1, 1, 1, 3), "not a multiple of groups"),
    BAD("nn.conv2d", "", X4, F32(4, 1, 0, 2, 3), "no pixels"),
    BAD("nn.conv2d", "", F32(4, 1, 4, 5, 0), F32(4, 1, 1, 0, 3), "no channels"),
    BAD("nn.conv2d", "", I64(4, 1, 4, 5, 2), F4, "x must hold floats"),
    BAD("nn.depthwise_conv2d", "", X4, F32(4, 3, 3, 3, 1), "channels differ"),
    BAD3("nn.conv2d_dx", "", F4, F32(4, 1, 2, 2, 4), X4, "dy has shape (1, 2, 2, 4)"),
    BAD3("nn.conv2d_df", "", X4, F32(4, 1, 2, 3, 5), F4, "the output has shape"),
    BAD("nn.max_pool2d_dx", "ksize=2", F32(4, 1, 2, 3, 2), X4, "dy has shape"),
    BAD("nn.max_pool2d_pick", "ksize=2", F32(4, 1, 2, 3, 2), X4, "v of shape"),
    {"nn.max_pool2d", "ksize=2", 1, {F32(3, 4, 5, 2)}, TM_EINVAL, "x must be (batch"},
    {"nn.avg_pool2d", "ksize=6", 1, {X4}, TM_EINVAL, "window of 6"},
    {"nn.avg_pool2d", "ksize=2;strides=-1", 1, {X4}, TM_EINVAL, "strides is -1"},
    BAD3("nn.batch_norm_train", "", X4, F32(1, 2), F32(1, 3), "beta has 3 elements"),
    BAD3("nn.batch_norm_train", "", F32(1, 2), F32(1, 2), F32(1, 2), "two axes"),
};

static void convolutions_agree_with_tensorflow(void **state) {
  (void)state;
  case_run_all(conv_cases, TM_COUNT(conv_cases));
}

static void pools_agree_with_tensorflow(void **state) {
  (void)state;
  case_run_all(pool_cases, TM_COUNT(pool_cases));
}

static void batch_norm_agrees_with_numpy(void **state) {
  (void)state;
  case_run_all(batchnorm_cases, TM_COUNT(batchnorm_cases));
}

static void mistakes_are_named(void **state) {
  (void)state;
  bad_run_all(bad, TM_COUNT(bad));
}

/* --- gradients of the hidden ops --- */

static double number(uint32_t *seed) {
  *seed = *seed * 1664525 + 1013904223;
  return (double)(*seed >> 8) / (1 << 24) * 2 - 1;
}

static void differences(tm_scope *sc, const char *op, const char *attrs, int32_t nin,
                        const int32_t rank, int64_t dim[3][4]) {
  struct graph_case c = {.op = op, .attrs = attrs, .nin = nin};
  tm_value *in[CASE_IN];
  uint32_t seed = 5;
  for (int32_t k = 0; k < nin; k++) {
    tm_shape s = tm_shape_of(rank, dim[k]);
    tm_tensor *t;
    assert_ok(tm_tensor_new(TM_F64, &s, &t, NULL));
    for (int64_t i = 0; i < tm_shape_count(&s); i++)
      ((double *)t->v.data)[i] = number(&seed);
    in[k] = help_keep(help_value(t));
    c.in[k] = (struct case_tensor){.dtype = TM_F64, .rank = rank};
    memcpy(c.in[k].dim, dim[k], sizeof dim[k]);
  }
  case_gradients(sc, &c, in);
  help_drop();
}

static void gradients_of_gradients_agree_with_differences(void **state) {
  (void)state;
  tm_scope *sc;
  tm_err err = {0};
  int64_t x[] = {2, 4, 5, 4}, f[] = {3, 2, 2, 4}, dy[] = {2, 4, 3, 4};
  int64_t x1[] = {2, 5, 3}, f1[] = {2, 3, 2}, dy1[] = {2, 4, 2}, p[] = {2, 2, 3, 4};
  int64_t fd[] = {3, 2, 4, 2}, dyd[] = {2, 2, 4, 8};
  const char *grouped = "groups=2;padding=same;strides=1,2";
  assert_ok_err(tm_ops_init(&err), &err);
  assert_ok(tm_scope_new(&sc));
#define THREE(op, attrs, rank, a, b, c)                                 \
  {                                                                     \
    int64_t dim_[3][4];                                                 \
    memset(dim_, 0, sizeof dim_);                                       \
    memcpy(dim_[0], a, sizeof a);                                       \
    memcpy(dim_[1], b, sizeof b);                                       \
    memcpy(dim_[2], c, sizeof c);                                       \
    differences(sc, op, attrs, strstr(op, "pool") ? 2 : 3, rank, dim_); \
  }
  THREE("nn.conv2d_dx", grouped, 4, f, dy, x)
  THREE("nn.conv2d_df", grouped, 4, x, dy, f)
  THREE("nn.conv1d_dx", "", 3, f1, dy1, x1)
  THREE("nn.conv1d_df", "", 3, x1, dy1, f1)
  THREE("nn.depthwise_conv2d_dx", "", 4, fd, dyd, x)
  THREE("nn.depthwise_conv2d_df", "", 4, x, dyd, fd)
  THREE("nn.max_pool2d_dx", "ksize=2;padding=same", 4, p, x, x)
  THREE("nn.max_pool2d_pick", "ksize=2;padding=same", 4, x, x, x)
  THREE("nn.avg_pool2d_dx", "ksize=2;padding=same", 4, p, x, x)
  tm_scope_free(sc);
}

/* --- batch_norm_train: only y carries a gradient --- */

enum { NORM_ROWS = 10, NORM_COLUMNS = 3 };

/* sum(w y^3), recorded by the tapes that are open. */
static tm_value *batch_norm(tm_scope *sc, tm_value **in) {
  struct graph_case c = {.op = "nn.batch_norm_train", .attrs = "epsilon=0.1", .nin = 3};
  tm_value *out[TM_MAX_OUTPUTS];
  int32_t nout;
  tm_err err = {0};
  assert_ok_err(case_apply(sc, &c, in, out, &nout, &err), &err);
  for (int32_t i = 0; i < nout; i++) help_keep(out[i]);
  tm_value *cube = help_op(sc, "mul", out[0], help_op(sc, "mul", out[0], out[0]));
  return help_sum(sc, help_op(sc, "mul", in[3], cube));
}

/* The sum of the squares of its gradients. */
static tm_value *batch_norm_slope(tm_scope *sc, tm_value **in) {
  tm_tape *tp;
  tm_grad g[3];
  tm_source src[3];
  tm_err err = {0};
  tm_value *sum = NULL;
  assert_ok(tm_tape_begin(sc, false, &tp));
  for (int k = 0; k < 3; k++) {
    tm_tape_watch(tp, in[k]);
    src[k] = (tm_source){in[k], 0};
  }
  tm_value *loss = batch_norm(sc, in);
  assert_ok_err(tm_tape_gradient(tp, loss, NULL, src, 3, g, &err), &err);
  tm_tape_unref(tp);
  for (int k = 0; k < 3; k++) {
    tm_value *part = help_sum(sc, help_op(sc, "mul", g[k].dense, g[k].dense));
    sum = sum ? help_op(sc, "add", sum, part) : part;
    tm_grad_release(&g[k]);
  }
  return sum;
}

static void batch_norm_check(tm_value *(*fn)(tm_scope *, tm_value **)) {
  tm_scope *sc;
  tm_tape *tp;
  tm_grad g[3];
  tm_source src[3];
  tm_value *in[4];
  tm_err err = {0};
  uint32_t seed = 9;
  int64_t dim[] = {NORM_ROWS / 2, 2, NORM_COLUMNS};
  assert_ok_err(tm_ops_init(&err), &err);
  assert_ok(tm_scope_new(&sc));
  for (int k = 0; k < 4; k++) {
    bool wide = k == 0 || k == 3; /* x, gamma, beta, w */
    tm_shape s = tm_shape_of(wide ? 3 : 1, wide ? dim : dim + 2);
    tm_tensor *t;
    assert_ok(tm_tensor_new(TM_F64, &s, &t, NULL));
    for (int64_t i = 0; i < tm_shape_count(&s); i++)
      ((double *)t->v.data)[i] = 1 + number(&seed);
    in[k] = help_value(t);
  }
  assert_ok(tm_tape_begin(sc, false, &tp));
  for (int k = 0; k < 3; k++) {
    tm_tape_watch(tp, in[k]);
    src[k] = (tm_source){in[k], 0};
  }
  tm_value *loss = fn(sc, in);
  assert_ok_err(tm_tape_gradient(tp, loss, NULL, src, 3, g, &err), &err);
  tm_tape_unref(tp);
  help_drop();
  for (int k = 0; k < 3; k++) {
    for (int64_t i = 0; i < tm_view_count(&in[k]->t->v); i++) {
      double *at = (double *)in[k]->t->v.data + i, was = *at, h = 1e-5;
      *at = was + h;
      double up = tm_view_get_f64(&fn(sc, in)->t->v, 0);
      *at = was - h;
      double down = tm_view_get_f64(&fn(sc, in)->t->v, 0);
      *at = was;
      help_drop();
      double want = (up - down) / (2 * h), got = tm_view_get_f64(&g[k].dense->t->v, i);
      if (!(fabs(got - want) <= 1e-5 * fmax(1, fabs(want))))
        fail_msg("input %d element %d: %g, not %g", k, (int)i, got, want);
    }
    tm_grad_release(&g[k]);
  }
  for (int k = 0; k < 4; k++) tm_value_unref(in[k]);
  tm_scope_free(sc);
}

static void batch_norm_gradients_agree_with_differences(void **state) {
  (void)state;
  batch_norm_check(batch_norm);
}

static void batch_norm_second_gradients_agree_with_differences(void **state) {
  (void)state;
  batch_norm_check(batch_norm_slope);
}

/* --- kernels in pieces against plain loops --- */

static void conv_ref(double *out, const float *x, const float *f, const tm_k_conv *g) {
  int64_t c = g->c / g->groups, co = g->co / g->groups;
  for (int64_t p = 0; p < tm_k_conv_pixels(g); p++)
    for (int64_t o = 0; o < g->co; o++) {
      double sum = 0;
      for (int64_t t = 0; t < g->kh * g->kw * c; t++) {
        int64_t i = t / c / g->kw, j = t / c % g->kw, k = o / co * c + t % c;
        int64_t y = p / g->ow % g->oh * g->sh - g->top + i * g->dh;
        int64_t u = p % g->ow * g->sw - g->left + j * g->dw;
        if (y < 0 || y >= g->h || u < 0 || u >= g->w) continue;
        int64_t n = p / (g->oh * g->ow);
        sum += (double)x[((n * g->h + y) * g->w + u) * g->c + k] *
               (double)f[t * g->co + o];
      }
      out[p * g->co + o] = sum;
    }
}

static float *numbers(int64_t n, uint32_t seed) {
  float *x = malloc((size_t)(n + 1) * sizeof *x);
  assert_non_null(x);
  for (int64_t i = 0; i < n; i++) x[i] = (float)number(&seed);
  return x;
}

static double dot(const float *a, const float *b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
  return sum;
}

/* Pieces of `step` pixels; dx and df are what they must be when both are adjoint to a
 * right output: <out, dy> = <x, dx> = <f, df>. */
static void conv_check(const tm_k_conv *g, int64_t step) {
  int64_t nx = g->n * g->h * g->w * g->c, no = tm_k_conv_pixels(g) * g->co;
  int64_t nf = g->kh * g->kw * (g->c / g->groups) * g->co;
  float *x = numbers(nx, 1), *f = numbers(nf, 2), *dy = numbers(no, 3);
  float *out = numbers(no, 4), *dx = calloc((size_t)nx, sizeof *dx);
  float *df = calloc((size_t)nf, sizeof *df);
  double *want = malloc((size_t)no * sizeof *want);
  float *scratch = malloc((tm_k_conv_scratch(g) + 1) * sizeof *scratch);
  assert_true(dx && df && want && scratch);
  for (int64_t at = 0; at < tm_k_conv_pixels(g); at += step) {
    int64_t n = tm_k_conv_pixels(g) - at;
    if (n > step) n = step;
    tm_k_conv_f32(out, x, f, g, scratch, at, n);
    tm_k_conv_dx_f32(dx, dy, f, g, scratch, at, n);
    tm_k_conv_df_f32(df, x, dy, g, scratch, at, n);
  }
  conv_ref(want, x, f, g);
  for (int64_t i = 0; i < no; i++)
    if (!(fabs((double)out[i] - want[i]) <= 2e-5))
      fail_msg("element %d is %g, not %g", (int)i, (double)out[i], want[i]);
  double both = dot(out, dy, no);
  assert_true(fabs(dot(x, dx, nx) - both) <= 2e-3);
  assert_true(fabs(dot(f, df, nf) - both) <= 2e-3);
  free(x);
  free(f);
  free(dy);
  free(out);
  free(dx);
  free(df);
  free(want);
  free(scratch);
}

static void pieces_of_any_size_make_the_same_convolution(void **state) {
  (void)state;
  const tm_k_conv some_convs[] = {
      {2, 9, 11, 5, 3, 3, 7, 9, 11, 1, 1, 1, 1, 1, 1, 1},
      {2, 9, 11, 4, 3, 5, 6, 5, 6, 2, 2, 1, 1, 1, 2, 2},
      {1, 12, 13, 3, 3, 3, 4, 8, 7, 1, 1, 2, 3, 0, 0, 1},
      {3, 6, 7, 8, 1, 1, 5, 6, 7, 1, 1, 1, 1, 0, 0, 1},
      {2, 6, 7, 8, 3, 3, 8, 6, 7, 1, 1, 1, 1, 1, 1, 8},
      {2, 6, 7, 3, 3, 3, 6, 3, 4, 2, 2, 1, 1, 0, 1, 3},
      {1, 1, 40, 6, 1, 5, 9, 1, 40, 1, 1, 1, 1, 0, 2, 3},
      {1, 3, 3, 70, 3, 3, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1},
  };
  for (size_t i = 0; i < TM_COUNT(some_convs); i++) {
    const tm_k_conv *g = &some_convs[i];
    conv_check(g, tm_k_conv_step(g));
    conv_check(g, tm_k_conv_step(g) < 7 ? 1 : 7);
  }
}

static void memory_and_time_of_a_piece_are_bounded(void **state) {
  (void)state;
  tm_k_conv g = {64, 512, 512, 64, 3, 3, 64, 512, 512, 1, 1, 1, 1, 1, 1, 1};
  assert_true(tm_k_conv_scratch(&g) * sizeof(float) < 2 << 20);
  assert_true(tm_k_conv_step(&g) < 1000);
  tm_k_conv wide = {64, 64, 64, 4096, 3, 3, 4096, 64, 64, 1, 1, 1, 1, 1, 1, 1};
  assert_true(tm_k_conv_step(&wide) < 20);
  tm_k_conv plain = {64, 512, 512, 512, 1, 1, 4096, 512, 512, 1, 1, 1, 1, 0, 0, 1};
  assert_true(tm_k_conv_scratch(&plain) == 0);
  assert_true((double)tm_k_conv_step(&plain) * 512 * 4096 < 3e9);
}

/* --- NaN and cancellation --- */

static void a_nan_is_the_maximum(void **state) {
  (void)state;
  tm_k_pool g = {1, 1, 4, 1, 1, 2, 1, 2, 1, 2, 0, 0};
  float x[] = {1, NAN, 3, 2}, out[2], dx[4] = {0}, dy[] = {5, 7};
  tm_k_max_pool_f32(out, x, &g, 0, 2);
  tm_k_max_pool_dx_f32(dx, dy, x, &g, 0, 2);
  assert_true(isnan(out[0]) && out[1] == 3);
  assert_true(dx[0] == 0 && dx[1] == 5 && dx[2] == 7 && dx[3] == 0);
}

static void a_cancelled_convolution_stops(void **state) {
  (void)state;
  const char *ops[] = {"nn.conv2d", "nn.max_pool2d"};
  tm_err err = {0};
  tm_cancel cancel = {0};
  assert_ok_err(tm_ops_init(&err), &err);
  tm_cancel_set(&cancel);
  for (int k = 0; k < 2; k++) {
    const tm_op *op = tm_op_find(ops[k]);
    tm_run_env env = help_env;
    float x[9] = {0}, f[4] = {0}, out[9], scratch[1024];
    int64_t dim[2][4] = {{1, 3, 3, 1}, {2, 2, 1, 1}};
    tm_view in[2] = {{.dtype = TM_F32, .shape = tm_shape_of(4, dim[0]), .data = x},
                     {.dtype = TM_F32, .shape = tm_shape_of(4, dim[1]), .data = f}};
    tm_view o = {.dtype = TM_F32, .shape = in[0].shape, .data = out};
    tm_attrs a;
    env.cancel = &cancel;
    case_attrs(ops[k], k ? "ksize=2" : "", &a);
    assert_ok_err(tm_op_complete_attrs(op, &a, &err), &err);
    tm_kctx c = {.op = op,
                 .nin = k ? 1 : 2,
                 .nout = 1,
                 .in = in,
                 .out = &o,
                 .attrs = &a,
                 .env = &env,
                 .scratch = scratch,
                 .err = &err};
    assert_int_equal(op->kernel(&c), TM_ECANCELLED);
    tm_attrs_release(&a);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(convolutions_agree_with_tensorflow),
      cmocka_unit_test(pools_agree_with_tensorflow),
      cmocka_unit_test(batch_norm_agrees_with_numpy),
      cmocka_unit_test(mistakes_are_named),
      cmocka_unit_test(gradients_of_gradients_agree_with_differences),
      cmocka_unit_test(batch_norm_gradients_agree_with_differences),
      cmocka_unit_test(batch_norm_second_gradients_agree_with_differences),
      cmocka_unit_test(pieces_of_any_size_make_the_same_convolution),
      cmocka_unit_test(memory_and_time_of_a_piece_are_bounded),
      cmocka_unit_test(a_nan_is_the_maximum),
      cmocka_unit_test(a_cancelled_convolution_stops),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
