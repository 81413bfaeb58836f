/* The store: versions, row tables, tokens, errors. */
#include <pthread.h>

#include "ps/client.h"
#include "ps/store.h"
#include "ps/tokens.h"
#include "test.h"

static tm_shape vec(int64_t n) { return tm_shape_of(1, &n); }

static tm_shape mat(int64_t n, int64_t m) {
  return tm_shape_of(2, (const int64_t[]){n, m});
}

static tm_shard_spec spec_of(uint64_t uid, tm_shape shape, const char *kind, double a) {
  tm_shard_spec sp = {
      .uid = uid, .dtype = TM_F32, .shape = shape, .full_shape = shape, .user = true};
  strcpy(sp.init.kind, kind);
  sp.init.a = a;
  return sp;
}

static tm_store *store(void) {
  tm_store *s;
  assert_ok(tm_store_new("/job:ps/task:3", &s));
  return s;
}

static void make(tm_store *s, uint64_t uid, tm_shape shape, double a) {
  tm_err err = {0};
  tm_shard_spec sp = spec_of(uid, shape, "constant", a);
  assert_ok_err(tm_store_create(s, &sp, &err), &err);
}

static tm_status run(tm_store *s, tm_ps_request *rq) { return tm_store_handle(s, rq); }

static tm_tensor *read_dense(tm_store *s, uint64_t uid, tm_shape shape) {
  tm_ps_read rd = {.kind = TM_PS_DENSE, .uid = uid, .dst = {TM_F32, shape, NULL}};
  tm_ps_request rq = {.nrd = 1, .rd = &rd};
  assert_ok_err(run(s, &rq), &rq.err);
  return rd.out;
}

static float first_of(tm_store *s, uint64_t uid, tm_shape shape) {
  tm_tensor *t = read_dense(s, uid, shape);
  float x = ((float *)t->v.data)[0];
  tm_tensor_unref(t);
  return x;
}

static tm_status add(tm_store *s, uint64_t uid, tm_shape shape, float *x,
                     const tm_ps_token *token) {
  tm_ps_update up = {.kind = TM_PS_ADD, .uid = uid, .value = {TM_F32, shape, x}};
  tm_ps_request rq = {.nup = 1, .up = &up};
  if (token) rq.token = *token;
  return run(s, &rq);
}

static void a_held_version_does_not_change_and_nobody_waits(void **state) {
  (void)state;
  tm_store *s = store();
  float one[2] = {1, 1};
  make(s, 1, vec(2), 0);
  tm_tensor *held[6];
  for (int i = 0; i < 6; i++) {
    held[i] = read_dense(s, 1, vec(2));
    assert_ok(add(s, 1, vec(2), one, NULL));
  }
  for (int i = 0; i < 6; i++) {
    assert_true(((float *)held[i]->v.data)[1] == (float)i);
    tm_tensor_unref(held[i]);
  }
  tm_store_stats st;
  tm_store_get_stats(s, &st);
  assert_int_equal(st.bytes_held, 2 * 2 * sizeof(float)); /* one extra version */
  assert_int_equal(st.variables, 1);
  tm_store_free(s);
}

static void a_version_nobody_holds_is_written_in_place(void **state) {
  (void)state;
  tm_store *s = store();
  float one[1] = {1};
  make(s, 1, vec(1), 0);
  tm_tensor *t = read_dense(s, 1, vec(1));
  void *where = t->v.data;
  tm_tensor_unref(t);
  assert_ok(add(s, 1, vec(1), one, NULL));
  t = read_dense(s, 1, vec(1));
  assert_ptr_equal(where, t->v.data);
  tm_tensor_unref(t);
  tm_store_free(s);
}

static void a_view_of_a_version_keeps_it_too(void **state) {
  (void)state;
  tm_store *s = store();
  float one[4] = {1, 1, 1, 1};
  make(s, 1, mat(2, 2), 5);
  tm_tensor *t = read_dense(s, 1, mat(2, 2)), *row;
  assert_ok(tm_tensor_rows(t, 1, 1, &row, NULL));
  tm_tensor_unref(t);
  assert_ok(add(s, 1, mat(2, 2), one, NULL));
  assert_true(((float *)row->v.data)[0] == 5.0f);
  tm_tensor_unref(row);
  tm_store_free(s);
}

static void rows_are_gathered_scattered_and_read_densely(void **state) {
  (void)state;
  tm_store *s = store();
  make(s, 1, mat(1000, 3), 0);
  int64_t ids[3] = {999, 0, 500};
  float rows[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, got[9];
  void *at[3] = {got + 6, got + 3, got};
  tm_ps_update up = {.kind = TM_PS_SCATTER_SET,
                     .uid = 1,
                     .value = {TM_F32, mat(3, 3), rows},
                     .ids = {TM_I64, vec(3), ids}};
  tm_ps_read rd = {.kind = TM_PS_ROWS,
                   .uid = 1,
                   .ids = {TM_I64, vec(3), ids},
                   .dst = {TM_F32, mat(3, 3), NULL},
                   .rows_at = at};
  tm_ps_request rq = {.nup = 1, .up = &up, .nrd = 1, .rd = &rd};
  assert_ok_err(run(s, &rq), &rq.err); /* the READ sees the UPDATE */
  assert_memory_equal(got + 6, rows, 12);
  assert_memory_equal(got + 3, rows + 3, 12);
  assert_memory_equal(got, rows + 6, 12);
  tm_tensor *all = read_dense(s, 1, mat(1000, 3));
  assert_memory_equal((float *)all->v.data + 999 * 3, rows, 12);
  assert_true(((float *)all->v.data)[3] == 0.0f);
  tm_tensor_unref(all);
  float ones[3000];
  for (int i = 0; i < 3000; i++) ones[i] = 1;
  assert_ok(add(s, 1, mat(1000, 3), ones, NULL)); /* dense updates still work */
  assert_true(first_of(s, 1, mat(1000, 3)) == 5.0f);
  tm_store_free(s);
}

static void a_row_that_does_not_exist_is_an_error_and_changes_nothing(void **state) {
  (void)state;
  tm_store *s = store();
  make(s, 0xabc, mat(4, 1), 7);
  int64_t ids[2] = {0, 4};
  float rows[2] = {1, 1};
  tm_ps_update up = {.kind = TM_PS_SCATTER_SET,
                     .uid = 0xabc,
                     .value = {TM_F32, mat(2, 1), rows},
                     .ids = {TM_I64, vec(2), ids}};
  tm_ps_request rq = {.nup = 1, .up = &up};
  for (int i = 0; i < 2; i++) {
    assert_int_equal(run(s, &rq), TM_EINVAL);
    assert_int_equal(rq.up_status, TM_EINVAL);
    assert_non_null(strstr(rq.err.msg, "abc has no row"));
    assert_string_equal(rq.err.task, "/job:ps/task:3");
    ids[1] = -1;
  }
  assert_true(first_of(s, 0xabc, mat(4, 1)) == 7.0f);
  tm_store_free(s);
}

static void the_halves_of_a_request_have_statuses_of_their_own(void **state) {
  (void)state;
  tm_store *s = store();
  make(s, 1, vec(1), 7);
  float bad[2] = {0, 0};
  tm_ps_update up = {.kind = TM_PS_ADD, .uid = 1, .value = {TM_F32, vec(2), bad}};
  tm_ps_read rd = {.kind = TM_PS_DENSE, .uid = 1};
  tm_ps_request rq = {.nup = 1, .up = &up, .nrd = 1, .rd = &rd};
  assert_int_equal(run(s, &rq), TM_EINVAL);
  assert_int_equal(rq.up_status, TM_EINVAL);
  assert_int_equal(rq.rd_status, TM_OK);
  assert_non_null(strstr(rq.err.msg, "(2)"));
  tm_tensor_unref(rd.out);
  rq.nup = 0;
  rd.uid = 99;
  assert_int_equal(run(s, &rq), TM_ENOTFOUND);
  assert_null(rd.out);
  tm_store_free(s);
}

static void a_token_is_applied_once(void **state) {
  (void)state;
  tm_store *s = store();
  float one[1] = {1};
  make(s, 1, vec(1), 0);
  tm_ps_token t = {.incarnation = 11, .closure = 5, .turn = 0, .lowest = 5};
  assert_ok(add(s, 1, vec(1), one, &t));
  assert_ok(add(s, 1, vec(1), one, &t)); /* ignored */
  assert_true(first_of(s, 1, vec(1)) == 1.0f);
  t.turn = 2;
  assert_ok(add(s, 1, vec(1), one, &t));
  t.turn = 1; /* a turn before one that was applied */
  t.incarnation = 12;
  assert_ok(add(s, 1, vec(1), one, &t)); /* whoever sends it again */
  assert_true(first_of(s, 1, vec(1)) == 2.0f);
  t.closure = 6;
  t.lowest = 6;
  assert_ok(add(s, 1, vec(1), one, &t));
  assert_true(first_of(s, 1, vec(1)) == 3.0f);
  tm_store_forget_tokens(s);
  assert_ok(add(s, 1, vec(1), one, &t));
  assert_true(first_of(s, 1, vec(1)) == 4.0f);
  tm_store_free(s);
}

static void a_failed_update_gives_its_token_back(void **state) {
  (void)state;
  tm_store *s = store();
  float one[2] = {1, 1};
  make(s, 1, vec(1), 0);
  tm_ps_token t = {.closure = 1, .lowest = 1};
  assert_int_equal(add(s, 1, vec(2), one, &t), TM_EINVAL);
  assert_ok(add(s, 1, vec(1), one, &t));
  assert_true(first_of(s, 1, vec(1)) == 1.0f);
  tm_store_free(s);
}

static void tokens_of_finished_closures_are_forgotten(void **state) {
  (void)state;
  tm_store *s = store();
  float one[1] = {1};
  make(s, 1, vec(1), 0);
  int64_t live = 0;
  for (uint64_t c = 1; c <= 3000; c++) {
    tm_ps_token t = {.closure = c, .lowest = c > 10 ? c - 10 : 1};
    assert_ok(add(s, 1, vec(1), one, &t));
    if (c == 1000) live = tm_mem_live();
  }
  assert_int_equal(tm_mem_live(), live);
  tm_store_free(s);
}

static void a_refused_incarnation_updates_nothing(void **state) {
  (void)state;
  tm_store *s = store();
  float one[1] = {1};
  make(s, 1, vec(1), 0);
  tm_store_refuse(s, 77);
  tm_ps_token t = {.incarnation = 77, .closure = 1, .lowest = 1};
  assert_int_equal(add(s, 1, vec(1), one, &t), TM_EABORTED);
  t.incarnation = 78;
  assert_ok(add(s, 1, vec(1), one, &t));
  tm_store_free(s);
}

/* Refusals are forgotten when 1024 newer ones came; that its closure has ended is not.
 */
static void a_late_update_of_a_closure_that_ended_changes_nothing(void **state) {
  (void)state;
  tm_store *s = store();
  float one[1] = {1};
  make(s, 1, vec(1), 0);
  tm_ps_token late = {.incarnation = 1, .closure = 5, .lowest = 5};
  tm_ps_token again = {.incarnation = 5000, .closure = 5, .lowest = 5};
  tm_ps_token next = {.incarnation = 5000, .closure = 9, .lowest = 9};
  for (uint64_t i = 1; i <= TM_REFUSED_MAX + 1; i++) tm_store_refuse(s, i);
  assert_ok(add(s, 1, vec(1), one, &again));
  assert_ok(add(s, 1, vec(1), one, &next));
  assert_int_equal(add(s, 1, vec(1), one, &late), TM_EABORTED);
  assert_true(first_of(s, 1, vec(1)) == 2.0f);
  tm_store_free(s);
}

static void making_a_shard_again_keeps_it(void **state) {
  (void)state;
  tm_store *s = store();
  tm_err err = {0};
  float one[2] = {1, 1};
  make(s, 1, vec(2), 0);
  assert_ok(add(s, 1, vec(2), one, NULL));
  make(s, 1, vec(2), 0);
  assert_true(first_of(s, 1, vec(2)) == 1.0f);
  tm_shard_spec other = spec_of(1, vec(3), "zeros", 0);
  assert_int_equal(tm_store_create(s, &other, &err), TM_EEXISTS);
  other = spec_of(2, vec(3), "zeros", 0);
  other.row_offset = 1;
  assert_int_equal(tm_store_create(s, &other, &err), TM_EINVAL);
  tm_store_drop(s, 1, 0);
  tm_store_drop(s, 1, 0);
  tm_ps_read rd = {.kind = TM_PS_DENSE, .uid = 1};
  tm_ps_request rq = {.nrd = 1, .rd = &rd};
  assert_int_equal(run(s, &rq), TM_ENOTFOUND);
  tm_store_free(s);
}

static void slots_are_made_at_the_first_apply_and_can_be_read(void **state) {
  (void)state;
  tm_store *s = store();
  make(s, 1, vec(2), 0);
  float g[2] = {1, 2};
  tm_ps_read rd = {.kind = TM_PS_SLOT, .uid = 1, .optimizer = 9, .slot = "accumulator"};
  tm_ps_request rq = {.nrd = 1, .rd = &rd};
  assert_int_equal(run(s, &rq), TM_ENOTFOUND);
  tm_ps_update up = {.kind = TM_PS_APPLY,
                     .uid = 1,
                     .rule = "adagrad",
                     .optimizer = 9,
                     .nhyper = 3,
                     .hyper = {0.1, 1e-7, 0.5},
                     .t = 1,
                     .value = {TM_F32, vec(2), g}};
  rq = (tm_ps_request){.nup = 1, .up = &up, .nrd = 1, .rd = &rd};
  assert_ok_err(run(s, &rq), &rq.err);
  assert_true(((float *)rd.out->v.data)[1] == 4.5f);
  tm_tensor_unref(rd.out);
  tm_store_stats st;
  tm_store_get_stats(s, &st);
  assert_int_equal(st.slots, 1);
  for (uint64_t o = 10; o < 300; o++) {
    up.optimizer = o;
    tm_status x = run(s, &rq);
    assert_true(x == TM_OK || o > 260);
    if (x) assert_int_equal(rq.up_status, TM_EEXHAUSTED);
    tm_tensor_unref(rd.out);
  }
  rq.nrd = 0;
  up.rule = "sgdd";
  assert_int_equal(run(s, &rq), TM_EINVAL);
  assert_non_null(strstr(rq.err.msg, "sgdd"));
  up.rule = "adagrad";
  up.nhyper = 2;
  assert_int_equal(run(s, &rq), TM_EINVAL);
  tm_store_free(s);
}

/* --- threads --- */

static void *why(const char *text) { return (void *)(uintptr_t)text; }

enum { PAIR = 512, TURNS = 400 };

static void *add_pairs(void *ud) {
  tm_store *s = ud;
  float ones[PAIR];
  for (int i = 0; i < PAIR; i++) ones[i] = 1;
  for (int k = 0; k < TURNS; k++) {
    tm_ps_update up[2] = {
        {.kind = TM_PS_ADD, .uid = 1, .value = {TM_F32, vec(PAIR), ones}},
        {.kind = TM_PS_ADD, .uid = 2, .value = {TM_F32, vec(PAIR), ones}}};
    tm_ps_request rq = {.nup = 2, .up = up};
    if (run(s, &rq)) return why("update failed");
  }
  return NULL;
}

static void *read_pairs(void *ud) {
  tm_store *s = ud;
  for (int k = 0; k < TURNS; k++) {
    tm_ps_read rd[2] = {{.kind = TM_PS_DENSE, .uid = 2},
                        {.kind = TM_PS_DENSE, .uid = 1}};
    tm_ps_request rq = {.nrd = 2, .rd = rd};
    if (run(s, &rq)) return why("read failed");
    const float *a = rd[0].out->v.data, *b = rd[1].out->v.data;
    for (int i = 0; i < PAIR; i++)
      if (a[i] != a[0] || b[i] != a[0]) return why("a torn read");
    tm_tensor_unref(rd[0].out);
    tm_tensor_unref(rd[1].out);
  }
  return NULL;
}

static void dense_reads_of_one_request_are_of_one_moment(void **state) {
  (void)state;
  tm_store *s = store();
  make(s, 1, vec(PAIR), 0);
  make(s, 2, vec(PAIR), 0);
  pthread_t t[4];
  for (int i = 0; i < 4; i++)
    assert_int_equal(pthread_create(&t[i], NULL, i < 2 ? add_pairs : read_pairs, s), 0);
  for (int i = 0; i < 4; i++) {
    void *what;
    assert_int_equal(pthread_join(t[i], &what), 0);
    if (what) fail_msg("%s", (const char *)what);
  }
  assert_true(first_of(s, 1, vec(PAIR)) == 2.0f * TURNS);
  tm_store_free(s);
}

static void *scatter_rows(void *ud) {
  tm_store *s = ud;
  float rows[8 * 32];
  for (int i = 0; i < 8 * 32; i++) rows[i] = 1;
  for (int64_t k = 0; k < TURNS; k++) {
    int64_t ids[8];
    for (int64_t i = 0; i < 8; i++) ids[i] = (k + i) % 16;
    tm_ps_update up = {.kind = TM_PS_SCATTER_ADD,
                       .uid = 1,
                       .value = {TM_F32, mat(8, 32), rows},
                       .ids = {TM_I64, vec(8), ids}};
    float got[8 * 32];
    tm_ps_read rd = {.kind = TM_PS_ROWS,
                     .uid = 1,
                     .ids = {TM_I64, vec(8), ids},
                     .dst = {TM_F32, mat(8, 32), got}};
    tm_ps_request rq = {.nup = 1, .up = &up, .nrd = 1, .rd = &rd};
    if (run(s, &rq)) return why("request failed");
    for (int r = 0; r < 8; r++)
      for (int i = 1; i < 32; i++)
        if (got[r * 32 + i] != got[r * 32]) return why("a torn row");
  }
  return NULL;
}

static void a_row_is_never_torn_and_no_change_is_lost(void **state) {
  (void)state;
  tm_store *s = store();
  make(s, 1, mat(16, 32), 0);
  pthread_t t[3];
  for (int i = 0; i < 3; i++)
    assert_int_equal(pthread_create(&t[i], NULL, scatter_rows, s), 0);
  for (int i = 0; i < 3; i++) {
    void *what;
    assert_int_equal(pthread_join(t[i], &what), 0);
    if (what) fail_msg("%s", (const char *)what);
  }
  tm_tensor *all = read_dense(s, 1, mat(16, 32));
  double sum = 0;
  for (int i = 0; i < 16 * 32; i++) sum += (double)((float *)all->v.data)[i];
  assert_true(sum == 3.0 * TURNS * 8 * 32);
  tm_tensor_unref(all);
  tm_store_free(s);
}

/* --- memory --- */

static tm_status work(void *ud) {
  (void)ud;
  tm_store *s;
  tm_ps_client *c = NULL;
  tm_err err = {0};
  TM_TRY(tm_store_new("/job:ps/task:0", &s));
  float g[4] = {1, 1, 1, 1}, got[2];
  int64_t ids[1] = {1};
  tm_shard_spec sp = spec_of(1, mat(2, 2), "zeros", 0);
  tm_ps_update up[2] = {{.kind = TM_PS_APPLY,
                         .uid = 1,
                         .rule = "adam",
                         .optimizer = 1,
                         .nhyper = 4,
                         .hyper = {0.1, 0.9, 0.99, 1e-7},
                         .t = 1,
                         .value = {TM_F32, mat(2, 2), g}},
                        {.kind = TM_PS_SCATTER_ADD,
                         .uid = 1,
                         .value = {TM_F32, mat(1, 2), g},
                         .ids = {TM_I64, vec(1), ids}}};
  tm_ps_read rd[2] = {{.kind = TM_PS_DENSE, .uid = 1},
                      {.kind = TM_PS_ROWS,
                       .uid = 1,
                       .ids = {TM_I64, vec(1), ids},
                       .dst = {TM_F32, mat(1, 2), got}}};
  tm_ps_request rq = {.token = {.incarnation = 1, .closure = 1, .turn = 0, .lowest = 1},
                      .nup = 1,
                      .up = up,
                      .nrd = 1,
                      .rd = rd};
  tm_status st = tm_ps_client_local(s, &c);
  if (st == TM_OK) st = c->create(c, &sp, 1, &err);
  if (st == TM_OK) st = c->begin(c, &rq, &err);
  if (st == TM_OK) st = rq.up_status ? rq.up_status : rq.rd_status;
  tm_tensor_unref(rd[0].out);
  rd[0].out = NULL;
  rq.nup = rq.nrd = 2;
  rq.token.closure = 2;
  if (st == TM_OK) st = c->begin(c, &rq, &err);
  if (st == TM_OK) st = rq.up_status ? rq.up_status : rq.rd_status;
  tm_tensor_unref(rd[0].out);
  if (c) c->close(c);
  tm_store_free(s);
  return st;
}

static void every_allocation_may_fail(void **state) {
  (void)state;
  assert_true(test_torture(work, NULL) > 10);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_held_version_does_not_change_and_nobody_waits),
      cmocka_unit_test(a_version_nobody_holds_is_written_in_place),
      cmocka_unit_test(a_view_of_a_version_keeps_it_too),
      cmocka_unit_test(rows_are_gathered_scattered_and_read_densely),
      cmocka_unit_test(a_row_that_does_not_exist_is_an_error_and_changes_nothing),
      cmocka_unit_test(the_halves_of_a_request_have_statuses_of_their_own),
      cmocka_unit_test(a_token_is_applied_once),
      cmocka_unit_test(a_failed_update_gives_its_token_back),
      cmocka_unit_test(tokens_of_finished_closures_are_forgotten),
      cmocka_unit_test(a_refused_incarnation_updates_nothing),
      cmocka_unit_test(a_late_update_of_a_closure_that_ended_changes_nothing),
      cmocka_unit_test(making_a_shard_again_keeps_it),
      cmocka_unit_test(slots_are_made_at_the_first_apply_and_can_be_read),
      cmocka_unit_test(dense_reads_of_one_request_are_of_one_moment),
      cmocka_unit_test(a_row_is_never_torn_and_no_change_is_lost),
      cmocka_unit_test(every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
