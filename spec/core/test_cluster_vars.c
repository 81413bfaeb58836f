/* tm_vars: one exchange becomes one request a ps, whatever the number of variables. */
#include "cluster/vars.h"
#include "test.h"

enum { TABLE = 1, SCALAR = 2, DENSE = 3, ROWS = 5, WIDTH = 3 };

typedef struct bench {
  tm_store *store[2];
  tm_catalog *catalog;
  tm_vars *v;
} bench;

static tm_var_info *info_of(uint64_t uid, const char *name, tm_dtype t, tm_shape shape,
                            int32_t nshard) {
  tm_var_info *info;
  assert_ok(tm_var_info_new(uid, t, &shape, name, true, nshard, &info));
  return info;
}

static void bench_variable(bench *b, uint64_t uid, const char *name, tm_dtype t,
                           tm_shape shape, int32_t nshard, const char *kind, double a) {
  tm_err err = {0};
  tm_init init = {.a = a};
  tm_var_info *info = info_of(uid, name, t, shape, nshard);
  strcpy(init.kind, kind);
  for (int32_t k = 0; k < nshard && nshard > 1; k++) {
    int64_t base = shape.dim[0] / nshard, extra = shape.dim[0] % nshard;
    info->shard[k].ps = k % 2;
    info->shard[k].rows = base + (k < extra);
    info->shard[k].offset = k * base + (k < extra ? k : extra);
  }
  assert_ok_err(tm_vars_create(b->v, info, &init, &err), &err);
  tm_var_info_unref(info);
}

static int setup(void **state) {
  bench *b = calloc(1, sizeof *b);
  tm_ps_client *ps[2];
  for (int k = 0; k < 2; k++) {
    assert_ok(tm_store_new(k ? "/job:ps/task:1" : "/job:ps/task:0", &b->store[k]));
    assert_ok(tm_ps_client_local(b->store[k], &ps[k]));
  }
  assert_ok(tm_catalog_new(&b->catalog));
  assert_ok(tm_vars_new(b->catalog, ps, 2, NULL, &b->v));
  bench_variable(b, TABLE, "table", TM_F32,
                 tm_shape_of(2, (const int64_t[]){ROWS, WIDTH}), 2, "constant", 1);
  bench_variable(b, SCALAR, "steps", TM_I64, tm_shape_scalar(), 1, "zeros", 0);
  bench_variable(b, DENSE, "dense", TM_F32, tm_shape_of(1, (const int64_t[]){4}), 1,
                 "constant", 2);
  *state = b;
  return 0;
}

static int teardown(void **state) {
  bench *b = *state;
  tm_vars_free(b->v);
  tm_catalog_unref(b->catalog);
  for (int k = 0; k < 2; k++) tm_store_free(b->store[k]);
  free(b);
  assert_int_equal(tm_mem_live(), 0);
  return 0;
}

static tm_view ids_view(int64_t *ids, int64_t n) {
  tm_view v = {TM_I64, {1, {n}}, ids};
  return v;
}

static tm_view rows_view(float *p, int64_t n) {
  tm_view v = {TM_F32, {2, {n, WIDTH}}, p};
  return v;
}

static tm_status exchange(bench *b, const tm_update *up, int32_t nup, tm_read *rd,
                          int32_t nrd, tm_err *err) {
  tm_err_clear(err);
  return b->v->state.exchange(&b->v->state, up, nup, rd, nrd, err);
}

static void read_table(bench *b, float *out) {
  tm_err err = {0};
  tm_read rd = {.kind = TM_READ_DENSE, .uid = TABLE, .shard = -1};
  assert_ok_err(exchange(b, NULL, 0, &rd, 1, &err), &err);
  memcpy(out, rd.out->v.data, sizeof(float) * ROWS * WIDTH);
  tm_tensor_unref(rd.out);
}

/* Rows 0..ROWS-1 become 10, 20, ... in their first element. */
static void number_rows(bench *b) {
  tm_err err = {0};
  int64_t ids[ROWS] = {4, 2, 0, 1, 3};
  float x[ROWS * WIDTH];
  for (int i = 0; i < ROWS; i++)
    for (int j = 0; j < WIDTH; j++)
      x[i * WIDTH + j] = (float)(10 * (ids[i] + 1)) + (float)j;
  tm_view iv = ids_view(ids, ROWS);
  tm_update up = {.kind = TM_UP_SCATTER_SET,
                  .uid = TABLE,
                  .shard = -1,
                  .value = rows_view(x, ROWS),
                  .ids = &iv};
  assert_ok_err(exchange(b, &up, 1, NULL, 0, &err), &err);
}

static void rows_come_back_in_the_order_of_their_ids(void **state) {
  bench *b = *state;
  tm_err err = {0};
  number_rows(b);
  int64_t ids[7] = {4, 0, 4, 3, 0, 2, 4};
  float got[7 * WIDTH];
  tm_view iv = ids_view(ids, 7);
  tm_read rd = {.kind = TM_READ_ROWS,
                .uid = TABLE,
                .shard = -1,
                .ids = &iv,
                .dst = rows_view(got, 7)};
  assert_ok_err(exchange(b, NULL, 0, &rd, 1, &err), &err);
  for (int i = 0; i < 7; i++)
    for (int j = 0; j < WIDTH; j++)
      assert_float_equal(got[i * WIDTH + j], (float)(10 * (ids[i] + 1)) + (float)j, 0);
}

static void each_row_travels_once(void **state) {
  bench *b = *state;
  tm_err err = {0};
  int64_t ids[6] = {1, 1, 1, 4, 4, 1};
  float got[6 * WIDTH];
  tm_view iv = ids_view(ids, 6);
  tm_read rd = {.kind = TM_READ_ROWS,
                .uid = TABLE,
                .shard = -1,
                .ids = &iv,
                .dst = rows_view(got, 6)};
  b->v->count = (tm_vars_counters){0};
  assert_ok_err(exchange(b, NULL, 0, &rd, 1, &err), &err);
  assert_int_equal(b->v->count.bytes_read, 2 * WIDTH * sizeof(float));
  assert_int_equal(b->v->count.reads, 2); /* row 1 and row 4 are on different ps */
}

static void many_items_are_one_request_a_ps(void **state) {
  bench *b = *state;
  tm_err err = {0};
  float x[4] = {1, 1, 1, 1};
  int64_t one = 1;
  tm_update up[2] = {
      {.kind = TM_UP_ADD, .uid = DENSE, .shard = -1, .value = {TM_F32, {1, {4}}, x}},
      {.kind = TM_UP_ADD,
       .uid = SCALAR,
       .shard = -1,
       .value = {TM_I64, {0, {0}}, &one}}};
  tm_read rd[3] = {{.kind = TM_READ_DENSE, .uid = DENSE, .shard = -1},
                   {.kind = TM_READ_DENSE, .uid = TABLE, .shard = -1},
                   {.kind = TM_READ_DENSE, .uid = SCALAR, .shard = -1}};
  b->v->count = (tm_vars_counters){0};
  assert_ok_err(exchange(b, up, 2, rd, 3, &err), &err);
  assert_int_equal(b->v->count.updates, 1); /* both are on ps 0 */
  assert_int_equal(b->v->count.reads, 2);
  assert_float_equal(((float *)rd[0].out->v.data)[0], 3, 0); /* after the UPDATE */
  assert_int_equal(*(int64_t *)rd[2].out->v.data, 1);
  for (int i = 0; i < 3; i++) tm_tensor_unref(rd[i].out);
}

static void repeated_ids_are_summed_before_a_rule_sees_them(void **state) {
  bench *b = *state;
  tm_err err = {0};
  int64_t ids[3] = {3, 0, 3};
  float g[3 * WIDTH], got[ROWS * WIDTH];
  for (int i = 0; i < 3 * WIDTH; i++) g[i] = 1;
  tm_view iv = ids_view(ids, 3);
  tm_update up = {.kind = TM_UP_APPLY_ROWS,
                  .uid = TABLE,
                  .shard = -1,
                  .value = rows_view(g, 3),
                  .ids = &iv,
                  .rule = "sgd",
                  .nhyper = 3,
                  .hyper = {0.5, 0, 0},
                  .t = 1};
  assert_ok_err(exchange(b, &up, 1, NULL, 0, &err), &err);
  read_table(b, got);
  assert_float_equal(got[0], 0.5, 0);         /* one gradient */
  assert_float_equal(got[3 * WIDTH], 0.0, 0); /* two */
  assert_float_equal(got[1 * WIDTH], 1.0, 0); /* none */
}

static void the_last_of_repeated_rows_wins_when_set(void **state) {
  bench *b = *state;
  tm_err err = {0};
  int64_t ids[3] = {2, 2, 2};
  float x[3 * WIDTH] = {7, 7, 7, 8, 8, 8, 9, 9, 9}, got[ROWS * WIDTH];
  tm_view iv = ids_view(ids, 3);
  tm_update up = {.kind = TM_UP_SCATTER_SET,
                  .uid = TABLE,
                  .shard = -1,
                  .value = rows_view(x, 3),
                  .ids = &iv};
  assert_ok_err(exchange(b, &up, 1, NULL, 0, &err), &err);
  read_table(b, got);
  assert_float_equal(got[2 * WIDTH + 1], 9, 0);
}

static void a_row_that_does_not_exist_is_an_error_that_names_it(void **state) {
  bench *b = *state;
  tm_err err = {0};
  int64_t bad[] = {ROWS, -1};
  float got[WIDTH];
  for (size_t i = 0; i < TM_COUNT(bad); i++) {
    tm_view iv = ids_view(&bad[i], 1);
    tm_read rd = {.kind = TM_READ_ROWS,
                  .uid = TABLE,
                  .shard = -1,
                  .ids = &iv,
                  .dst = rows_view(got, 1)};
    assert_int_equal(exchange(b, NULL, 0, &rd, 1, &err), TM_EINVAL);
    assert_non_null(strstr(err.msg, "table has no row"));
  }
}

static void a_value_of_another_shape_is_refused_with_both_shapes(void **state) {
  bench *b = *state;
  tm_err err = {0};
  float x[3] = {0};
  tm_update up = {
      .kind = TM_UP_ASSIGN, .uid = DENSE, .shard = -1, .value = {TM_F32, {1, {3}}, x}};
  assert_int_equal(exchange(b, &up, 1, NULL, 0, &err), TM_EINVAL);
  assert_non_null(strstr(err.msg, "dense is float32 (4"));
  assert_non_null(strstr(err.msg, "float32 (3"));
}

static void an_unknown_variable_is_not_found(void **state) {
  bench *b = *state;
  tm_err err = {0};
  tm_read rd = {.kind = TM_READ_DENSE, .uid = 99, .shard = -1};
  assert_int_equal(exchange(b, NULL, 0, &rd, 1, &err), TM_ENOTFOUND);
}

static void a_whole_value_is_cut_by_shard(void **state) {
  bench *b = *state;
  tm_err err = {0};
  float x[ROWS * WIDTH], got[ROWS * WIDTH];
  for (int i = 0; i < ROWS * WIDTH; i++) x[i] = (float)i;
  tm_update up = {
      .kind = TM_UP_ASSIGN, .uid = TABLE, .shard = -1, .value = rows_view(x, ROWS)};
  assert_ok_err(exchange(b, &up, 1, NULL, 0, &err), &err);
  read_table(b, got);
  assert_memory_equal(got, x, sizeof x);
}

static void the_second_exchange_of_a_kind_allocates_nothing_but_results(void **state) {
  bench *b = *state;
  for (int i = 0; i < 3; i++) number_rows(b);
  int64_t live = tm_mem_live();
  for (int i = 0; i < 100; i++) number_rows(b);
  assert_int_equal(tm_mem_live(), live);
}

/* A step: UPDATE of the rows read before, READ of the next ids, as workers do. */
static void train(bench *b, int64_t *old, int64_t *next, int64_t n, float *g, float *y,
                  int32_t fan) {
  tm_err err = {0};
  int64_t groups = fan ? n / fan : n;
  tm_view ov = ids_view(old, n), nv = ids_view(next, n);
  tm_update up = {.kind = TM_UP_APPLY_ROWS,
                  .uid = TABLE,
                  .shard = -1,
                  .value = rows_view(g, groups),
                  .ids = &ov,
                  .rule = "sgd",
                  .nhyper = 3,
                  .hyper = {1, 0, 0},
                  .t = 1,
                  .fan = fan,
                  .mean = fan > 0};
  tm_read rd = {.kind = TM_READ_ROWS,
                .uid = TABLE,
                .shard = -1,
                .ids = &nv,
                .dst = rows_view(y, groups),
                .fan = fan,
                .mean = fan > 0};
  assert_ok_err(exchange(b, &up, old ? 1 : 0, &rd, 1, &err), &err);
}

/* The same on a plain array. */
static void train_plain(float *table, const int64_t *old, const int64_t *next, int n,
                        const float *g, float *y, int fan) {
  float share = fan ? 1.0F / (float)fan : 1;
  if (!fan) fan = 1;
  for (int i = 0; old && i < n; i++)
    for (int k = 0; k < WIDTH; k++)
      table[old[i] * WIDTH + k] -= share * g[i / fan * WIDTH + k];
  memset(y, 0, sizeof *y * (size_t)(n / fan) * WIDTH);
  for (int i = 0; i < n; i++)
    for (int k = 0; k < WIDTH; k++)
      y[i / fan * WIDTH + k] += share * table[next[i] * WIDTH + k];
}

static void steps_equal_those_of_a_plain_array(void **state) {
  bench *b = *state;
  enum { N = 6 };
  uint32_t rnd = 1;
  int64_t ids[2][N];
  float table[ROWS * WIDTH], got[ROWS * WIDTH], g[N * WIDTH], y[N * WIDTH],
      want[N * WIDTH];
  number_rows(b);
  read_table(b, table);
  for (int step = 0; step < 200; step++) {
    int64_t *old = ids[step & 1], *next = ids[(step + 1) & 1];
    int fan = (int[]){0, 1, 2, 3}[step / 50];
    /* Now and then the caller's memory has other ids than when they were read. */
    for (int i = 0; step % 7 == 0 && i < N; i++) old[i] = (i + step) % ROWS;
    for (int i = 0; i < N; i++)
      next[i] = (int64_t)((rnd = rnd * 1664525U + 1013904223U) >> 24) % ROWS;
    for (int i = 0; i < N * WIDTH; i++)
      g[i] = (float)((rnd = rnd * 1664525U + 1013904223U) >> 24) / 64 - 2;
    train(b, old, next, N, g, y, fan);
    train_plain(table, old, next, N, g, want, fan);
    for (int i = 0; i < (fan ? N / fan : N) * WIDTH; i++)
      assert_float_equal(y[i], want[i], 1e-3);
  }
  read_table(b, got);
  for (int i = 0; i < ROWS * WIDTH; i++) assert_float_equal(got[i], table[i], 1e-3);
}

static void steps_of_one_size_allocate_nothing(void **state) {
  bench *b = *state;
  int64_t ids[4] = {4, 1, 4, 0};
  float g[4 * WIDTH] = {0}, y[4 * WIDTH];
  for (int i = 0; i < 4; i++) train(b, ids, ids, 4, g, y, 2);
  int64_t live = tm_mem_live();
  for (int i = 0; i < 100; i++) train(b, ids, ids, 4, g, y, 2);
  assert_int_equal(tm_mem_live(), live);
}

static void only_the_distinct_ids_that_count_travel(void **state) {
  bench *b = *state;
  tm_err err = {0};
  int64_t ids[4] = {0, 4, 99, -1};
  float x[4 * WIDTH], got[ROWS * WIDTH];
  for (int i = 0; i < 4 * WIDTH; i++) x[i] = 1;
  tm_view iv = ids_view(ids, 4);
  tm_update up = {.kind = TM_UP_APPLY_ROWS,
                  .uid = TABLE,
                  .shard = -1,
                  .value = rows_view(x, 4),
                  .ids = &iv,
                  .nunique = 2,
                  .rule = "sgd",
                  .nhyper = 3,
                  .hyper = {0.5, 0, 0},
                  .t = 1};
  assert_ok_err(exchange(b, &up, 1, NULL, 0, &err), &err);
  read_table(b, got);
  for (int r = 0; r < ROWS; r++)
    assert_float_equal(got[r * WIDTH], r == 0 || r == 4 ? 0.5 : 1, 0);
  for (int i = 0; i < 4 * WIDTH; i++) x[i] = 77;
  tm_read rd = {.kind = TM_READ_ROWS,
                .uid = TABLE,
                .shard = -1,
                .ids = &iv,
                .nunique = 2,
                .dst = rows_view(x, 4)};
  assert_ok_err(exchange(b, NULL, 0, &rd, 1, &err), &err);
  for (int i = 0; i < 4 * WIDTH; i++)
    assert_float_equal(x[i], i < 2 * WIDTH ? 0.5 : 77, 0);
  rd.nunique = 5;
  assert_int_equal(exchange(b, NULL, 0, &rd, 1, &err), TM_EINVAL);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
  const struct CMUnitTest tests[] = {
      T(rows_come_back_in_the_order_of_their_ids),
      T(each_row_travels_once),
      T(many_items_are_one_request_a_ps),
      T(repeated_ids_are_summed_before_a_rule_sees_them),
      T(the_last_of_repeated_rows_wins_when_set),
      T(a_row_that_does_not_exist_is_an_error_that_names_it),
      T(a_value_of_another_shape_is_refused_with_both_shapes),
      T(an_unknown_variable_is_not_found),
      T(a_whole_value_is_cut_by_shard),
      T(the_second_exchange_of_a_kind_allocates_nothing_but_results),
      T(steps_equal_those_of_a_plain_array),
      T(steps_of_one_size_allocate_nothing),
      T(only_the_distinct_ids_that_count_travel),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
