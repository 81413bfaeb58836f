/* TM_CONFIG and TF_CONFIG. */
#include "base/buf.h"
#include "cluster/spec.h"
#include "test.h"

static const char whole[] =
    "{\"cluster\": {\"worker\": [\"a:1\", \"b:2\"], \"ps\": {\"0\": \"c:3\", \"2\": "
    "\"[::1]:4\"}, \"chief\": [\"d:5\"]}, \"task\": {\"type\": \"worker\", \"index\": "
    "\"1\"}, \"rpc_layer\": \"grpc\", \"cluster_id\": \"mine\"}";

static void lists_and_sparse_objects_are_read(void **state) {
  (void)state;
  tm_cluster_spec *s;
  tm_err err = {0};
  const char *a;
  assert_ok_err(tm_cluster_spec_parse("TM_CONFIG", whole, &s, &err), &err);
  assert_int_equal(s->njob, 3);
  assert_int_equal(tm_cluster_spec_job(s, "ps")->n, 3);
  assert_ok(tm_cluster_spec_address(s, "worker", 1, &a, &err));
  assert_string_equal(a, "b:2");
  assert_ok(tm_cluster_spec_address(s, "ps", 2, &a, &err));
  assert_string_equal(a, "[::1]:4");
  assert_int_equal(tm_cluster_spec_address(s, "ps", 1, &a, &err), TM_ENOTFOUND);
  assert_non_null(strstr(err.msg, "/job:ps/task:1"));
  assert_string_equal(s->task_type, "worker");
  assert_int_equal(s->task_index, 1);
  assert_string_equal(s->cluster_id, "mine");
  tm_cluster_spec_free(s);
}

static void mistakes_say_what_and_where(void **state) {
  (void)state;
  static const struct {
    const char *json, *says;
  } cases[] = {
      {"{\"cluster\": ", "not valid JSON (line 1, column"},
      {"[1]", "must be a JSON object"},
      {"{\"cluster\": [1]}", "\"cluster\" must be an object"},
      {"{\"cluster\": {\"worker\": \"a:1\"}}", "cluster.worker must be a list"},
      {"{\"cluster\": {\"worker\": [\"a:1\", 7]}}",
       "cluster.worker[1] must be a string"},
      {"{\"cluster\": {\"worker\": [\"a\"]}}",
       "cluster.worker[0]: \"a\" is not host:port"},
      {"{\"cluster\": {\"ps\": {\"x\": \"a:1\"}}}", "\"x\" is not an index"},
      {"{\"cluster\": {\"ps\": {\"0\": \"a:1\", \"00\": \"b:1\"}}}", "index 0 twice"},
      {"{\"cluster\": {\"ps\": {\"4096\": \"a:1\"}}}", "not an index from 0 to 4095"},
      {"{\"cluster\": {\"ps\": [\"a:1\"]}, \"task\": {\"type\": \"wrker\"}}", "wrker"},
      {"{\"cluster\": {\"ps\": [\"a:1\"]}, \"task\": {\"type\": \"ps\", \"index\": 1}}",
       "task.index is 1"},
      {"{\"task\": {\"type\": \"ps\", \"index\": -1}}", "task.index must be"},
      {"{\"task\": {\"type\": \"ps\", \"index\": 1.5}}", "task.index must be"},
      {"{\"task\": {\"index\": 1}}", "task.type must be"},
      {"{\"task\": 3}", "\"task\" must be an object"},
      {"{\"cluster_id\": 3}", "cluster_id must be a string"},
      {"{\"cluster\": {}, \"cluster\": {}}", "not valid JSON"},
  };
  for (size_t i = 0; i < TM_COUNT(cases); i++) {
    tm_cluster_spec *s;
    tm_err err = {0};
    assert_int_equal(tm_cluster_spec_parse("TF_CONFIG", cases[i].json, &s, &err),
                     TM_EINVAL);
    if (!strstr(err.msg, cases[i].says) || strncmp(err.msg, "TF_CONFIG: ", 11) != 0)
      fail_msg("%s\nsays: %s", cases[i].json, err.msg);
    assert_null(s);
  }
}

static void an_evaluator_need_not_be_in_the_cluster(void **state) {
  (void)state;
  tm_cluster_spec *s;
  tm_err err = {0};
  assert_ok_err(tm_cluster_spec_parse("TF_CONFIG",
                                      "{\"cluster\": {\"ps\": [\"a:1\"]}, \"task\": "
                                      "{\"type\": \"evaluator\", \"index\": 0}}",
                                      &s, &err),
                &err);
  tm_cluster_spec_free(s);
}

static void all_tasks_come_to_the_same_cluster_id(void **state) {
  (void)state;
  tm_cluster_spec *a, *b;
  tm_err err = {0};
  char id[TM_CLUSTER_ID];
  assert_ok(tm_cluster_spec_parse(
      "x", "{\"cluster\": {\"worker\": [\"a:1\"], \"ps\": [\"b:2\"]}}", &a, &err));
  assert_ok(
      tm_cluster_spec_parse("x",
                            "{\"task\": {\"type\": \"ps\"}, \"cluster\": {\"ps\": "
                            "{\"0\": \"b:2\"}, \"chief\": [\"c:3\"], \"worker\": "
                            "[\"a:1\"]}}",
                            &b, &err));
  assert_string_equal(a->cluster_id, b->cluster_id);
  tm_cluster_id((const char *[]){"a:1"}, 1, (const char *[]){"b:2"}, 1, id);
  assert_string_equal(a->cluster_id, id);
  tm_cluster_id((const char *[]){"a:1", "b:2"}, 2, NULL, 0, id);
  assert_string_not_equal(a->cluster_id, id);
  tm_cluster_spec_free(a);
  tm_cluster_spec_free(b);
}

static void tm_config_wins_over_tf_config(void **state) {
  (void)state;
  tm_cluster_spec *s;
  tm_err err = {0};
  unsetenv("TM_CONFIG");
  unsetenv("TF_CONFIG");
  assert_ok(tm_cluster_spec_env(&s, &err));
  assert_null(s);
  setenv("TF_CONFIG", "{\"cluster_id\": \"tf\"}", 1);
  assert_ok(tm_cluster_spec_env(&s, &err));
  assert_string_equal(s->cluster_id, "tf");
  tm_cluster_spec_free(s);
  setenv("TM_CONFIG", whole, 1);
  assert_ok(tm_cluster_spec_env(&s, &err));
  assert_string_equal(s->cluster_id, "mine");
  tm_cluster_spec_free(s);
  unsetenv("TM_CONFIG");
  unsetenv("TF_CONFIG");
}

static tm_status parse(void *ud) {
  tm_cluster_spec *s;
  (void)ud;
  TM_TRY(tm_cluster_spec_parse("x", whole, &s, NULL));
  tm_cluster_spec_free(s);
  return TM_OK;
}

static void every_allocation_may_fail(void **state) {
  (void)state;
  assert_true(test_torture(parse, NULL) > 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(lists_and_sparse_objects_are_read),
      cmocka_unit_test(mistakes_say_what_and_where),
      cmocka_unit_test(an_evaluator_need_not_be_in_the_cluster),
      cmocka_unit_test(all_tasks_come_to_the_same_cluster_id),
      cmocka_unit_test(tm_config_wins_over_tf_config),
      cmocka_unit_test(every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
