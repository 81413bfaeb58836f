/* Rounds: what optimizers apply waits for the end, and its mean is applied once. */
#include "ps/rounds.h"
#include "ps/store.h"
#include "test.h"

static tm_shape vec(int64_t n) { return tm_shape_of(1, &n); }

static tm_shape mat(int64_t n, int64_t m) {
  return tm_shape_of(2, (const int64_t[]){n, m});
}

static void make(tm_store *s, uint64_t uid, tm_dtype t, tm_shape shape, double a) {
  tm_err err = {0};
  tm_shard_spec sp = {
      .uid = uid, .dtype = t, .shape = shape, .full_shape = shape, .user = true};
  strcpy(sp.init.kind, "constant");
  sp.init.a = a;
  assert_ok_err(tm_store_create(s, &sp, &err), &err);
}

static tm_store *store(void) {
  tm_store *s;
  assert_ok(tm_store_new("/job:ps/task:0", &s));
  return s;
}

static void read_into(tm_store *s, uint64_t uid, tm_dtype t, tm_shape shape, void *to) {
  tm_ps_read rd = {.kind = TM_PS_DENSE, .uid = uid, .dst = {t, shape, to}};
  tm_ps_request rq = {.nrd = 1, .rd = &rd};
  assert_ok_err(tm_store_handle(s, &rq), &rq.err);
}

static float first_of(tm_store *s, uint64_t uid, int64_t n) {
  float x[64];
  read_into(s, uid, TM_F32, vec(n), x);
  return x[0];
}

static tm_ps_update sgd(uint64_t uid, tm_shape shape, float *g) {
  return (tm_ps_update){.kind = TM_PS_APPLY,
                        .uid = uid,
                        .rule = "sgd",
                        .optimizer = 9,
                        .nhyper = 3,
                        .hyper = {1, 0, 0},
                        .t = 1,
                        .value = {TM_F32, shape, g}};
}

static tm_ps_update sgd_rows(uint64_t uid, int64_t *ids, int64_t n, float *g) {
  tm_ps_update up = sgd(uid, mat(n, 1), g);
  up.kind = TM_PS_APPLY_ROWS;
  up.ids = (tm_view){TM_I64, vec(n), ids};
  return up;
}

static tm_ps_update sum(tm_ps_up_kind kind, uint64_t uid, tm_dtype t, tm_shape shape,
                        void *x, bool once) {
  return (tm_ps_update){.kind = kind, .uid = uid, .value = {t, shape, x}, .once = once};
}

static tm_status send_turn(tm_store *s, uint64_t closure, uint32_t turn, uint64_t round,
                           uint64_t share, tm_ps_update *up, int32_t n) {
  tm_ps_request rq = {.token = {.incarnation = 1,
                                .closure = closure,
                                .turn = turn,
                                .lowest = 1,
                                .round = round,
                                .share = share},
                      .nup = n,
                      .up = up};
  return tm_store_handle(s, &rq);
}

static void send(tm_store *s, uint64_t closure, uint64_t round, uint64_t share,
                 tm_ps_update *up, int32_t n) {
  assert_ok(send_turn(s, closure, 0, round, share, up, n));
}

static void end_round(tm_store *s, uint64_t round, const uint64_t *share, int32_t n) {
  tm_err err = {0};
  tm_ps_commit c = {round, share, n};
  assert_ok_err(tm_store_commit(s, &c, &err), &err);
}

static void the_mean_is_applied_once_when_the_round_ends(void **state) {
  (void)state;
  tm_store *s = store();
  make(s, 1, TM_F32, vec(2), 10);
  const float grad[3] = {1, 2, 6};
  for (uint64_t k = 0; k < 3; k++) {
    float g[2] = {grad[k], grad[k]};
    tm_ps_update up = sgd(1, vec(2), g);
    send(s, k + 1, 1, k + 1, &up, 1);
    g[0] = 100; /* it is a copy that waits */
  }
  assert_true(first_of(s, 1, 2) == 10);
  end_round(s, 1, (const uint64_t[]){1, 2, 3}, 3);
  assert_true(first_of(s, 1, 2) == 7);
  end_round(s, 1, (const uint64_t[]){1, 2, 3}, 3); /* it was sent again */
  assert_true(first_of(s, 1, 2) == 7);
  tm_store_free(s);
}

static void what_comes_late_or_is_not_named_never_counts(void **state) {
  (void)state;
  tm_store *s = store();
  make(s, 1, TM_F32, vec(1), 10);
  float one = 1, many = 50;
  tm_ps_update up = sgd(1, vec(1), &one), other = sgd(1, vec(1), &many);
  tm_store_stats before, st;
  tm_store_get_stats(s, &before);
  send(s, 1, 1, 1, &up, 1);
  send(s, 2, 1, 2, &other, 1); /* of a worker that was lost then */
  end_round(s, 1, (const uint64_t[]){1}, 1);
  assert_true(first_of(s, 1, 1) == 9);
  send(s, 3, 1, 3, &other, 1); /* a backup worker's */
  end_round(s, 2, (const uint64_t[]){2, 3}, 2);
  assert_true(first_of(s, 1, 1) == 9);
  tm_store_get_stats(s, &st);
  assert_int_equal(st.bytes_held, before.bytes_held); /* nothing is left aside */
  tm_store_free(s);
}

static void other_updates_apply_at_once_and_once(void **state) {
  (void)state;
  tm_store *s = store();
  make(s, 1, TM_F32, vec(1), 10);
  make(s, 2, TM_F32, vec(1), 0);
  float g = 4, one = 1;
  tm_ps_update up[2] = {sgd(1, vec(1), &g),
                        sum(TM_PS_ADD, 2, TM_F32, vec(1), &one, false)};
  send(s, 1, 1, 1, up, 2);
  assert_true(first_of(s, 2, 1) == 1);
  send(s, 1, 1, 1, up, 2); /* sent again after a cut */
  send(s, 1, 1, 2, up, 2); /* the closure runs again elsewhere, as another share */
  assert_true(first_of(s, 2, 1) == 1);
  end_round(s, 1, (const uint64_t[]){2}, 1);
  assert_true(first_of(s, 1, 1) == 6);
  assert_true(first_of(s, 2, 1) == 1);
  tm_store_free(s);
}

static void what_counts_once_grows_by_one_a_round(void **state) {
  (void)state;
  tm_store *s = store();
  make(s, 1, TM_I64, tm_shape_of(0, NULL), 5);
  int64_t one = 1, n;
  tm_ps_update up = sum(TM_PS_ADD, 1, TM_I64, tm_shape_of(0, NULL), &one, true);
  for (uint64_t k = 1; k <= 3; k++) send(s, k, 1, k, &up, 1);
  end_round(s, 1, (const uint64_t[]){1, 2, 3}, 3);
  read_into(s, 1, TM_I64, tm_shape_of(0, NULL), &n);
  assert_int_equal(n, 6);
  send_turn(s, 9, 0, 0, 0, &up, 1); /* of no round: at once */
  read_into(s, 1, TM_I64, tm_shape_of(0, NULL), &n);
  assert_int_equal(n, 7);
  tm_store_free(s);
}

static void rows_are_summed_by_row_and_divided_by_the_shares(void **state) {
  (void)state;
  tm_store *s = store();
  make(s, 1, TM_F32, mat(4, 1), 10);
  int64_t a[2] = {0, 1}, b[2] = {2, 1};
  float ga[2] = {2, 4}, gb[2] = {6, 8}, da[2] = {1, 1}, x[4];
  tm_ps_update ua[2] = {sum(TM_PS_SCATTER_SUB, 1, TM_F32, mat(2, 1), da, true),
                        sgd_rows(1, a, 2, ga)};
  tm_ps_update ub[2] = {ua[0], sgd_rows(1, b, 2, gb)};
  ua[0].ids = (tm_view){TM_I64, vec(2), a};
  ub[0].ids = (tm_view){TM_I64, vec(2), b};
  send(s, 1, 1, 1, ua, 2);
  send(s, 2, 1, 2, ub, 2);
  end_round(s, 1, (const uint64_t[]){1, 2}, 2);
  read_into(s, 1, TM_F32, mat(4, 1), x);
  assert_true(x[0] == 10 - 1 - 1); /* decay once, half of 2 */
  assert_true(x[1] == 10 - 1 - 6);
  assert_true(x[2] == 10 - 1 - 3);
  assert_true(x[3] == 10);
  tm_store_free(s);
}

/* The bits of a sum depend on its order: it is that of the names, not of arrival. */
static void the_sum_runs_in_the_order_of_the_shares(void **state) {
  (void)state;
  static const int order[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                  {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  const float grad[3] = {1e8F, 3, -1e8F};
  float first = 0;
  for (int i = 0; i < 6; i++) {
    tm_store *s = store();
    make(s, 1, TM_F32, vec(1), 0);
    for (int k = 0; k < 3; k++) {
      float g = grad[order[i][k]];
      tm_ps_update up = sgd(1, vec(1), &g);
      send(s, (uint64_t)order[i][k] + 1, 1, (uint64_t)order[i][k] + 1, &up, 1);
    }
    end_round(s, 1, (const uint64_t[]){1, 2, 3}, 3);
    float x = first_of(s, 1, 1);
    if (i == 0) first = x;
    assert_memory_equal(&x, &first, sizeof x);
    tm_store_free(s);
  }
}

static void a_share_may_have_several_turns(void **state) {
  (void)state;
  tm_store *s = store();
  make(s, 1, TM_F32, vec(1), 10);
  make(s, 2, TM_F32, vec(1), 10);
  float g = 2;
  tm_ps_update a = sgd(1, vec(1), &g), b = sgd(2, vec(1), &g);
  assert_ok(send_turn(s, 1, 0, 1, 1, &a, 1));
  assert_ok(send_turn(s, 1, 1, 1, 1, &b, 1));
  assert_ok(send_turn(s, 1, 1, 1, 1, &b, 1));
  tm_store_drop(s, 2, 0);
  end_round(s, 1, (const uint64_t[]){1}, 1); /* what was dropped is passed over */
  assert_true(first_of(s, 1, 1) == 8);
  tm_store_free(s);
}

static void a_lost_task_adds_nothing_to_a_round(void **state) {
  (void)state;
  tm_store *s = store();
  make(s, 1, TM_F32, vec(1), 10);
  float g = 2;
  tm_ps_update up = sgd(1, vec(1), &g);
  tm_store_refuse(s, 1);
  assert_int_equal(send_turn(s, 1, 0, 1, 1, &up, 1), TM_EABORTED);
  end_round(s, 1, (const uint64_t[]){1}, 1);
  assert_true(first_of(s, 1, 1) == 10);
  tm_store_free(s);
}

/* Each allocation fails once: nothing is half applied, nothing is left. */
static void every_allocation_may_fail(void **state) {
  (void)state;
  for (long fail = 0; fail < 200; fail++) {
    int64_t live = tm_mem_live();
    tm_store *s = store();
    make(s, 1, TM_F32, vec(1), 10);
    make(s, 2, TM_F32, mat(4, 1), 10);
    float g = 2, gr[2] = {2, 2}, x[4];
    int64_t ids[2] = {3, 1};
    tm_ps_update up[2] = {sgd(1, vec(1), &g), sgd_rows(2, ids, 2, gr)};
    const uint64_t share[2] = {1, 2};
    tm_ps_commit c = {1, share, 2};
    tm_err err = {0};
    struct test_budget b = {.left = fail, .once = true};
    tm_mem_hook(test_flaky, &b);
    tm_status sent = send_turn(s, 1, 0, 1, 1, up, 2);
    tm_status too = send_turn(s, 2, 0, 1, 2, up, 2);
    tm_status ended = tm_store_commit(s, &c, &err);
    tm_mem_hook(NULL, NULL);
    read_into(s, 2, TM_F32, mat(4, 1), x);
    bool moved = x[3] == 8;
    assert_true(moved == (first_of(s, 1, 1) == 8));
    if (sent == TM_OK && too == TM_OK && ended == TM_OK) assert_true(moved);
    if (ended != TM_OK) assert_false(moved);
    tm_store_free(s);
    assert_int_equal(tm_mem_live(), live);
    if (atomic_load(&b.left) > 0) return; /* none failed any more */
  }
  fail_msg("it never came to an end");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_mean_is_applied_once_when_the_round_ends),
      cmocka_unit_test(what_comes_late_or_is_not_named_never_counts),
      cmocka_unit_test(other_updates_apply_at_once_and_once),
      cmocka_unit_test(what_counts_once_grows_by_one_a_round),
      cmocka_unit_test(rows_are_summed_by_row_and_divided_by_the_shares),
      cmocka_unit_test(the_sum_runs_in_the_order_of_the_shares),
      cmocka_unit_test(a_share_may_have_several_turns),
      cmocka_unit_test(a_lost_task_adds_nothing_to_a_round),
      cmocka_unit_test(every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
