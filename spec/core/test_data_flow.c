/* Sources in memory and what moves, joins and stacks elements. */
#include "datasets.h"

/* --- sources --- */
static void slices_give_the_rows_of_each_tensor(void **state) {
  (void)state;
  tm_tensor *t[2] = {ints(3, 2, 0), ints(3, 0, 100)};
  tm_dataset *ds;
  assert_ok(tm_data_slices(t, 2, &ds, NULL));
  tm_tensor_unref(t[0]);
  tm_tensor_unref(t[1]);
  assert_int_equal(tm_dataset_width(ds), 2);
  assert_int_equal(tm_dataset_types(ds)[0].shape.rank, 1);
  assert_int_equal(tm_dataset_types(ds)[1].shape.rank, 0);
  assert_int_equal(tm_dataset_cardinality(ds), 3);
  assert_null(tm_dataset_name(ds, 0));
  assert_values(ds, 0, 1, 100, 2, 3, 101, 4, 5, 102);
  tm_dataset_unref(ds);
}

static void slices_want_equally_many_rows(void **state) {
  (void)state;
  tm_tensor *t[2] = {ints(3, 0, 0), ints(4, 0, 0)}, *scalar;
  tm_dataset *ds;
  tm_err err = {0};
  assert_int_equal(tm_data_slices(t, 2, &ds, &err), TM_EINVAL);
  assert_null(ds);
  assert_non_null(strstr(err.msg, "component 2 has 4 rows"));
  assert_ok(tm_tensor_i64(1, &scalar));
  assert_int_equal(tm_data_slices(&scalar, 1, &ds, &err), TM_EINVAL);
  assert_int_equal(tm_data_slices(t, 0, &ds, &err), TM_EINVAL);
  tm_tensor_unref(scalar);
  tm_tensor_unref(t[0]);
  tm_tensor_unref(t[1]);
}

static void tensors_are_one_element(void **state) {
  (void)state;
  tm_tensor *t = ints(2, 2, 5);
  tm_dataset *ds;
  assert_ok(tm_data_tensors(&t, 1, &ds, NULL));
  tm_tensor_unref(t);
  assert_int_equal(tm_dataset_cardinality(ds), 1);
  assert_int_equal(tm_dataset_types(ds)[0].shape.rank, 2);
  assert_values(ds, 5, 6, 7, 8);
  CHAIN(ds, tm_data_rep, 2);
  assert_values(ds, 5, 6, 7, 8, 5, 6, 7, 8);
  tm_dataset_unref(ds);
}

static void ranges_stop_before_stop(void **state) {
  (void)state;
  const struct {
    int64_t start, stop, step, n, last;
  } r[] = {{0, 1000, 1, 1000, 999},
           {5, 0, -2, 3, 1},
           {0, 0, 1, 0, 0},
           {3, 1, 1, 0, 0},
           {-4, 5, 3, 3, 2},
           {INT64_MAX - 1, INT64_MAX, 5, 1, INT64_MAX - 1},
           {INT64_MIN, INT64_MAX, INT64_MAX, 3, INT64_MAX - 1}};
  for (size_t i = 0; i < sizeof r / sizeof r[0]; i++) {
    tm_dataset *ds;
    int64_t got[1000];
    assert_ok(tm_data_range(r[i].start, r[i].stop, r[i].step, &ds, NULL));
    assert_int_equal(tm_dataset_cardinality(ds), r[i].n);
    assert_int_equal(values(ds, got, 1000), r[i].n);
    if (r[i].n) assert_int_equal(got[0], r[i].start);
    if (r[i].n) assert_int_equal(got[r[i].n - 1], r[i].last);
    tm_dataset_unref(ds);
  }
  tm_dataset *ds;
  assert_int_equal(tm_data_range(0, 1, 0, &ds, NULL), TM_EINVAL);
  assert_int_equal(tm_data_range(INT64_MIN, INT64_MAX, 1, &ds, NULL), TM_EINVAL);
}

/* --- moving --- */
static void take_skip_rep_and_shard_count_elements(void **state) {
  (void)state;
  tm_dataset *ds = range_of(5);
  CHAIN(ds, tm_data_skip, 1);
  CHAIN(ds, tm_data_take, 3);
  assert_int_equal(tm_dataset_cardinality(ds), 3);
  assert_values(ds, 1, 2, 3);
  CHAIN(ds, tm_data_rep, 2);
  assert_values(ds, 1, 2, 3, 1, 2, 3);
  CHAIN(ds, tm_data_shard, 4, 1, NULL);
  assert_int_equal(tm_dataset_cardinality(ds), 2);
  assert_values(ds, 2, 3);
  CHAIN(ds, tm_data_rep, -1);
  assert_int_equal(tm_dataset_cardinality(ds), TM_DATA_INFINITE);
  CHAIN(ds, tm_data_take, 5);
  assert_int_equal(tm_dataset_cardinality(ds), 5);
  assert_values(ds, 2, 3, 2, 3, 2);
  tm_dataset_unref(ds);
}

static void counts_below_zero_mean_all(void **state) {
  (void)state;
  int64_t got[8];
  tm_dataset *ds = range_of(3);
  CHAIN(ds, tm_data_take, -1);
  assert_values(ds, 0, 1, 2);
  CHAIN(ds, tm_data_skip, -1);
  assert_int_equal(tm_dataset_cardinality(ds), 0);
  assert_int_equal(values(ds, got, 8), 0);
  tm_dataset_unref(ds);
  ds = range_of(3);
  CHAIN(ds, tm_data_rep, 0);
  assert_int_equal(tm_dataset_cardinality(ds), 0);
  assert_int_equal(values(ds, got, 8), 0);
  tm_dataset_unref(ds);
}

static void repeating_nothing_for_ever_ends(void **state) {
  (void)state;
  int64_t got[8];
  tm_dataset *ds = range_of(0);
  CHAIN(ds, tm_data_rep, -1);
  assert_int_equal(tm_dataset_cardinality(ds), 0);
  assert_int_equal(values(ds, got, 8), 0);
  tm_dataset_unref(ds);
}

static void the_end_is_told_every_time(void **state) {
  (void)state;
  tm_dataset *ds = range_of(2);
  tm_iter *it = iterate(ds, &test_env);
  tm_dataset_unref(ds);
  int64_t got[4];
  assert_int_equal(drain(it, got, 4), 2);
  assert_int_equal(tm_iter_position(it), 2);
  assert_next_fails(it, TM_ERANGE, "ended", "");
  assert_next_fails(it, TM_ERANGE, "ended", "");
  assert_ok(tm_iter_reset(it, NULL));
  assert_int_equal(tm_iter_position(it), 0);
  assert_int_equal(drain(it, got, 4), 2);
  tm_iter_free(it);
}

static void shards_of_workers_make_the_whole(void **state) {
  (void)state;
  tm_dataset *ds = range_of(10);
  CHAIN(ds, tm_data_shard, 3, TM_DATA_WORKER, NULL);
  assert_int_equal(tm_dataset_cardinality(ds), TM_DATA_UNKNOWN);
  int64_t seen = 0;
  for (int64_t w = 0; w < 3; w++) {
    tm_iter_env env = {w, 3, 0, 0, NULL};
    int64_t got[10];
    size_t n = values_env(ds, &env, got, 10);
    for (size_t i = 0; i < n; i++) {
      assert_int_equal(got[i] % 3, w);
      seen |= (int64_t)1 << got[i];
    }
  }
  assert_int_equal(seen, 1023);
  tm_dataset_unref(ds);
  ds = range_of(10);
  tm_dataset *out;
  assert_int_equal(tm_data_shard(ds, 3, 3, NULL, &out, NULL), TM_EINVAL);
  assert_int_equal(tm_data_shard(ds, 0, 0, NULL, &out, NULL), TM_EINVAL);
  tm_dataset_unref(ds);
}

static void a_cache_reads_its_input_once(void **state) {
  (void)state;
  tm_dataset *ds = range_of(20);
  CHAIN(ds, tm_data_shuffle, 20, false, 0, true);
  CHAIN(ds, tm_data_cache);
  CHAIN(ds, tm_data_rep, 2);
  int64_t got[40];
  assert_int_equal(values(ds, got, 40), 40);
  assert_memory_equal(got, got + 20, 20 * sizeof *got); /* not shuffled anew */
  tm_dataset_unref(ds);
}

/* --- stacking --- */
static void batches_are_full_but_the_last(void **state) {
  (void)state;
  tm_dataset *rows = slices_of(ints(5, 2, 0)), *ds;
  assert_ok(tm_data_batch(rows, 2, false, &ds, NULL));
  assert_int_equal(tm_dataset_cardinality(ds), 3);
  const tm_type *t = tm_dataset_types(ds);
  assert_int_equal(t->shape.rank, 2);
  assert_int_equal(t->shape.dim[0], -1);
  assert_int_equal(t->shape.dim[1], 2);
  assert_values(ds, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9);
  tm_iter *it = iterate(ds, &test_env);
  for (int i = 0; i < 3; i++) {
    tm_tensor *b;
    assert_ok(tm_iter_next(it, &b, NULL));
    assert_int_equal(b->v.shape.dim[0], i < 2 ? 2 : 1);
    tm_tensor_unref(b);
  }
  tm_iter_free(it);
  tm_dataset_unref(ds);
  assert_ok(tm_data_batch(rows, 2, true, &ds, NULL));
  assert_int_equal(tm_dataset_cardinality(ds), 2);
  assert_int_equal(tm_dataset_types(ds)->shape.dim[0], 2);
  assert_values(ds, 0, 1, 2, 3, 4, 5, 6, 7);
  CHAIN(ds, tm_data_unbatch);
  assert_int_equal(tm_dataset_cardinality(ds), 4);
  assert_int_equal(tm_dataset_types(ds)->shape.rank, 1);
  assert_values(ds, 0, 1, 2, 3, 4, 5, 6, 7);
  tm_dataset_unref(ds);
  assert_int_equal(tm_data_batch(rows, 0, true, &ds, NULL), TM_EINVAL);
  tm_dataset_unref(rows);
}

static void neighbouring_rows_are_batched_without_a_copy(void **state) {
  (void)state;
  tm_tensor *t = ints(6, 2, 0), *b;
  tm_dataset *ds = slices_of(tm_tensor_ref(t));
  CHAIN(ds, tm_data_batch, 3, false);
  tm_iter *it = iterate(ds, &test_env);
  assert_ok(tm_iter_next(it, &b, NULL));
  assert_ptr_equal(b->v.data, t->v.data);
  tm_tensor_unref(b);
  tm_iter_free(it);
  tm_dataset_unref(ds);
  tm_tensor_unref(t);
}

static tm_tensor *words(void) {
  const tm_str w[] = {{"one", 3}, {"", 0}, {"three", 5}, {"4", 1}};
  tm_shape s = tm_shape_of(1, (int64_t[]){4});
  tm_tensor *t;
  assert_ok(tm_tensor_strings(&s, w, &t, NULL));
  return t;
}

static void strings_outlive_what_they_came_from(void **state) {
  (void)state;
  tm_dataset *a = slices_of(words()), *b = slices_of(words()), *ds;
  assert_ok(tm_data_concatenate(a, b, &ds, NULL));
  tm_dataset_unref(a);
  tm_dataset_unref(b);
  CHAIN(ds, tm_data_shuffle, 3, true, 1, true);
  CHAIN(ds, tm_data_batch, 3, false);
  tm_iter *it = iterate(ds, &test_env);
  tm_dataset_unref(ds);
  tm_tensor *t[3];
  int64_t ones = 0, bytes = 0;
  for (int i = 0; i < 3; i++) assert_ok(tm_iter_next(it, &t[i], NULL));
  tm_iter_free(it);
  for (int i = 0; i < 3; i++) {
    for (int64_t k = 0; k < t[i]->v.shape.dim[0]; k++) {
      ones += str_is(t[i], k, "one");
      bytes += (int64_t)((tm_str *)t[i]->v.data)[k].n;
    }
    tm_tensor_unref(t[i]);
  }
  assert_int_equal(ones, 2);
  assert_int_equal(bytes, 18);
}

static void shapes_in_a_batch_must_agree(void **state) {
  (void)state;
  tm_tensor *x = ints(2, 0, 0), *y = ints(3, 0, 0);
  tm_dataset *a, *b, *ds;
  assert_ok(tm_data_tensors(&x, 1, &a, NULL));
  assert_ok(tm_data_tensors(&y, 1, &b, NULL));
  assert_ok(tm_data_concatenate(a, b, &ds, NULL));
  assert_int_equal(tm_dataset_types(ds)->shape.dim[0], -1);
  CHAIN(ds, tm_data_batch, 2, false);
  tm_iter *it = iterate(ds, &test_env);
  assert_next_fails(it, TM_EINVAL, "(3)", "(2)");
  assert_next_fails(it, TM_ERANGE, "ended", "");
  tm_iter_free(it);
  tm_dataset_unref(ds);
  tm_dataset_unref(a);
  tm_dataset_unref(b);
  tm_tensor_unref(x);
  tm_tensor_unref(y);
}

static void empty_rows_are_batched_too(void **state) {
  (void)state;
  tm_shape s = tm_shape_of(2, (int64_t[]){4, 0});
  tm_tensor *t, *b;
  assert_ok(tm_tensor_new(TM_F32, &s, &t, NULL));
  tm_dataset *ds = slices_of(t);
  CHAIN(ds, tm_data_shuffle, 4, false, 0, true);
  CHAIN(ds, tm_data_batch, 3, false);
  tm_iter *it = iterate(ds, &test_env);
  assert_ok(tm_iter_next(it, &b, NULL));
  assert_int_equal(b->v.shape.dim[0], 3);
  assert_int_equal(b->v.shape.dim[1], 0);
  tm_tensor_unref(b);
  tm_iter_free(it);
  tm_dataset_unref(ds);
}

/* --- joining --- */
static void zip_ends_with_the_shortest(void **state) {
  (void)state;
  tm_dataset *in[3] = {range_of(3), range_of(5), slices_of(ints(9, 0, 10))}, *ds;
  CHAIN(in[1], tm_data_rep, -1);
  assert_ok(tm_data_zip(in, 3, &ds, NULL));
  for (int i = 0; i < 3; i++) tm_dataset_unref(in[i]);
  assert_int_equal(tm_dataset_width(ds), 3);
  assert_int_equal(tm_dataset_cardinality(ds), 3);
  assert_values(ds, 0, 0, 10, 1, 1, 11, 2, 2, 12);
  CHAIN(ds, tm_data_enumerate, 7);
  assert_values(ds, 7, 0, 0, 10, 8, 1, 1, 11, 9, 2, 2, 12);
  tm_dataset_unref(ds);
}

static void concatenate_wants_one_structure(void **state) {
  (void)state;
  tm_dataset *a = range_of(2), *b = slices_of(ints(2, 2, 0)), *ds;
  tm_err err = {0};
  assert_int_equal(tm_data_concatenate(a, b, &ds, &err), TM_EINVAL);
  assert_non_null(strstr(err.msg, "component 1"));
  assert_ok(tm_data_concatenate(a, a, &ds, NULL));
  assert_int_equal(tm_dataset_cardinality(ds), 4);
  assert_values(ds, 0, 1, 0, 1);
  tm_dataset_unref(ds);
  tm_dataset_unref(a);
  tm_dataset_unref(b);
}

static void trees_are_bounded(void **state) {
  (void)state;
  tm_dataset *ds = range_of(1), *next;
  tm_status s = TM_OK;
  int n = 0;
  while (s == TM_OK && n < 2 * TM_DATA_DEPTH) {
    s = tm_data_take(ds, 1, &next, NULL);
    if (s != TM_OK) break;
    tm_dataset_unref(ds);
    ds = next;
    n++;
  }
  assert_int_equal(s, TM_EINVAL);
  assert_int_equal(n, TM_DATA_DEPTH - 1);
  assert_values(ds, 0);
  tm_dataset_unref(ds);
  ds = range_of(1);
  for (n = 0, s = TM_OK; s == TM_OK && n < 64; n++) { /* doubles each time */
    s = tm_data_concatenate(ds, ds, &next, NULL);
    if (s != TM_OK) break;
    tm_dataset_unref(ds);
    ds = next;
  }
  assert_int_equal(s, TM_EINVAL);
  assert_true(n < 16);
  tm_dataset_unref(ds);
}

/* --- shuffling --- */
static void assert_permutation(const int64_t *v, size_t n) {
  bool seen[1000] = {false};
  assert_true(n <= 1000);
  for (size_t i = 0; i < n; i++) {
    assert_true(v[i] >= 0 && (size_t)v[i] < n && !seen[v[i]]);
    seen[v[i]] = true;
  }
}

static tm_dataset *shuffled(int64_t n, int64_t buffer, bool has_seed, uint64_t seed,
                            bool reshuffle) {
  tm_dataset *ds = range_of(n);
  CHAIN(ds, tm_data_shuffle, buffer, has_seed, seed, reshuffle);
  return ds;
}

static void a_shuffle_loses_and_repeats_nothing(void **state) {
  (void)state;
  const int64_t buffers[] = {1, 2, 10, 99, 100, 1000};
  for (size_t i = 0; i < 6; i++) {
    tm_dataset *ds = shuffled(100, buffers[i], true, i, true);
    int64_t got[100];
    assert_int_equal(values(ds, got, 100), 100);
    assert_permutation(got, 100);
    for (size_t k = 0; k < 100; k++) /* cannot come before it is in the buffer */
      assert_true((int64_t)k > got[k] - buffers[i]);
    if (buffers[i] == 1) assert_true(got[0] == 0 && got[99] == 99);
    tm_dataset_unref(ds);
  }
}

static void a_repetition_has_another_order_unless_told(void **state) {
  (void)state;
  for (int reshuffle = 0; reshuffle < 2; reshuffle++) {
    tm_dataset *ds = shuffled(50, 50, true, 3, reshuffle);
    CHAIN(ds, tm_data_rep, 2);
    int64_t a[100], b[100];
    assert_int_equal(values(ds, a, 100), 100);
    assert_int_equal(values(ds, b, 100), 100);
    assert_memory_equal(a, b, sizeof a); /* a re-run is the same */
    assert_permutation(a, 50);
    assert_permutation(a + 50, 50);
    assert_int_equal(memcmp(a, a + 50, 50 * sizeof *a) != 0, reshuffle);
    tm_dataset_unref(ds);
  }
}

static void only_unseeded_shuffles_differ_between_workers(void **state) {
  (void)state;
  const tm_iter_env base = {0, 2, 7, 0, NULL}, worker = {1, 2, 7, 0, NULL},
                    seed = {0, 2, 8, 0, NULL}, epoch = {0, 2, 7, 1, NULL};
  for (int has_seed = 0; has_seed < 2; has_seed++) {
    tm_dataset *ds = shuffled(50, 50, has_seed, 3, true);
    int64_t a[50], b[50];
    values_env(ds, &base, a, 50);
    values_env(ds, &worker, b, 50);
    assert_int_equal(memcmp(a, b, sizeof a) == 0, has_seed);
    values_env(ds, &seed, b, 50);
    assert_int_equal(memcmp(a, b, sizeof a) == 0, has_seed);
    values_env(ds, &epoch, b, 50);
    assert_int_not_equal(memcmp(a, b, sizeof a), 0);
    values_env(ds, &base, b, 50);
    assert_memory_equal(a, b, sizeof a);
    tm_dataset_unref(ds);
  }
}

static void two_shuffles_do_not_move_alike(void **state) {
  (void)state;
  tm_dataset *in[2] = {shuffled(50, 50, false, 0, true),
                       shuffled(50, 50, false, 0, true)};
  tm_dataset *ds;
  assert_ok(tm_data_zip(in, 2, &ds, NULL));
  int64_t got[100];
  assert_int_equal(values(ds, got, 100), 100);
  int same = 0;
  for (int i = 0; i < 50; i++) same += got[2 * i] == got[2 * i + 1];
  assert_true(same < 15);
  tm_dataset_unref(ds);
  tm_dataset_unref(in[0]);
  tm_dataset_unref(in[1]);
}

/* Chi-square over the position of one element: shuffling is fair. */
static void a_full_buffer_shuffles_fairly(void **state) {
  (void)state;
  enum { N = 10, RUNS = 2000 };
  int count[N][N] = {{0}};
  tm_dataset *ds = shuffled(N, N, false, 0, true);
  for (uint64_t r = 0; r < RUNS; r++) {
    tm_iter_env env = {0, 1, 5, r, NULL};
    int64_t got[N];
    values_env(ds, &env, got, N);
    for (int i = 0; i < N; i++) count[i][got[i]]++;
  }
  double chi = 0, want = (double)RUNS / N;
  for (int i = 0; i < N; i++)
    for (int k = 0; k < N; k++)
      chi += (count[i][k] - want) * (count[i][k] - want) / want;
  assert_true(chi < 140.0); /* 81 degrees of freedom: p = 0.0001 at 136 */
  tm_dataset_unref(ds);
}

static tm_status everything(void *ud) {
  tm_dataset *a = NULL, *b = NULL, *c = NULL, *d = NULL, *e = NULL, *f = NULL,
             *g = NULL;
  tm_iter *it = NULL;
  tm_tensor *t = ud, *out[4];
  tm_status s = tm_data_slices(&t, 1, &a, NULL);
  if (s == TM_OK) s = tm_data_shuffle(a, 5, true, 1, true, &b, NULL);
  if (s == TM_OK) s = tm_data_enumerate(b, 0, &c, NULL);
  if (s == TM_OK) s = tm_data_cache(c, &d, NULL);
  if (s == TM_OK) s = tm_data_batch(d, 3, false, &e, NULL);
  if (s == TM_OK) s = tm_data_rep(e, 2, &f, NULL);
  if (s == TM_OK) s = tm_data_zip((tm_dataset *[]){f, f}, 2, &g, NULL);
  if (s == TM_OK) s = tm_dataset_iterate(g, &test_env, &it, NULL);
  while (s == TM_OK) {
    s = tm_iter_next(it, out, NULL);
    for (int i = 0; s == TM_OK && i < 4; i++) tm_tensor_unref(out[i]);
  }
  tm_iter_free(it);
  tm_dataset *all[] = {a, b, c, d, e, f, g};
  for (int i = 0; i < 7; i++) tm_dataset_unref(all[i]);
  return s == TM_ERANGE ? TM_OK : s;
}

static void every_allocation_may_fail(void **state) {
  (void)state;
  tm_tensor *t = words();
  assert_true(test_torture(everything, t) > 50);
  tm_tensor_unref(t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(slices_give_the_rows_of_each_tensor),
      cmocka_unit_test(slices_want_equally_many_rows),
      cmocka_unit_test(tensors_are_one_element),
      cmocka_unit_test(ranges_stop_before_stop),
      cmocka_unit_test(take_skip_rep_and_shard_count_elements),
      cmocka_unit_test(counts_below_zero_mean_all),
      cmocka_unit_test(repeating_nothing_for_ever_ends),
      cmocka_unit_test(the_end_is_told_every_time),
      cmocka_unit_test(shards_of_workers_make_the_whole),
      cmocka_unit_test(a_cache_reads_its_input_once),
      cmocka_unit_test(batches_are_full_but_the_last),
      cmocka_unit_test(neighbouring_rows_are_batched_without_a_copy),
      cmocka_unit_test(strings_outlive_what_they_came_from),
      cmocka_unit_test(shapes_in_a_batch_must_agree),
      cmocka_unit_test(empty_rows_are_batched_too),
      cmocka_unit_test(zip_ends_with_the_shortest),
      cmocka_unit_test(concatenate_wants_one_structure),
      cmocka_unit_test(trees_are_bounded),
      cmocka_unit_test(a_shuffle_loses_and_repeats_nothing),
      cmocka_unit_test(a_repetition_has_another_order_unless_told),
      cmocka_unit_test(only_unseeded_shuffles_differ_between_workers),
      cmocka_unit_test(two_shuffles_do_not_move_alike),
      cmocka_unit_test(a_full_buffer_shuffles_fairly),
      cmocka_unit_test(every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
