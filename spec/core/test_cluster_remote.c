/* A cluster of real processes: a chief here, workers and ps in children. */
#include <signal.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "cluster/ps_remote.h"
#include "cluster/server.h"
#include "cluster/session.h"
#include "cluster/term.h"
#include "data/source.h"
#include "net/channel.h"
#include "test.h"

enum { COUNTER = 1, TASKS = 8 };

typedef struct task {
  pid_t pid;
  char address[64];
} task;

typedef struct bench {
  int32_t nworker, nps;
  task worker[TASKS], ps[TASKS];
  tm_session *s;
  tm_coordinator *c;
} bench;

/* --- processes --- */

static void child(const char *job, int32_t index, int fd) {
  tm_server *s;
  tm_err err = {0};
  char address[64] = {0};
  tm_server_options o = {.job = job,
                         .index = index,
                         .address = "127.0.0.1:0",
                         .cluster_id = "test",
                         .chief_timeout = 30};
  if (tm_server_start(&o, &s, &err)) _exit(2);
  snprintf(address, sizeof address, "127.0.0.1:%u", (unsigned)tm_server_port(s));
  if (write(fd, address, sizeof address) < 0) _exit(3);
  close(fd);
  tm_status st = tm_server_join(s, NULL, &err);
  tm_server_free(s);
  _exit(st == TM_OK && tm_mem_live() == 0 ? 0 : 4);
}

static void task_start(task *t, const char *job, int32_t index) {
  int fd[2];
  assert_int_equal(pipe(fd), 0);
  t->pid = fork();
  assert_true(t->pid >= 0);
  if (t->pid == 0) {
    close(fd[0]);
    child(job, index, fd[1]);
  }
  close(fd[1]);
  assert_int_equal(read(fd[0], t->address, sizeof t->address), sizeof t->address);
  close(fd[0]);
}

static void task_kill(task *t) {
  int status;
  kill(t->pid, SIGKILL);
  assert_int_equal(waitpid(t->pid, &status, 0), t->pid);
  t->pid = 0;
}

static void bench_tasks(bench *b, int32_t workers, int32_t ps) {
  tm_err err = {0};
  memset(b, 0, sizeof *b);
  b->nworker = workers;
  b->nps = ps;
  tm_err_clear(&err);
  assert_ok_err(tm_ops_init(&err), &err);
  for (int32_t i = 0; i < ps; i++) task_start(&b->ps[i], "ps", i);
  for (int32_t i = 0; i < workers; i++) task_start(&b->worker[i], "worker", i);
}

static tm_status bench_try_connect(bench *b, tm_err *err) {
  const char *w[TASKS], *p[TASKS];
  for (int32_t i = 0; i < b->nworker; i++) w[i] = b->worker[i].address;
  for (int32_t i = 0; i < b->nps; i++) p[i] = b->ps[i].address;
  tm_session_options o = {.nworker = b->nworker,
                          .nps = b->nps,
                          .seed = 1,
                          .threads = 1,
                          .worker_address = w,
                          .ps_address = p,
                          .cluster_id = "test",
                          .heartbeat_interval = 0.1,
                          .heartbeat_timeout = 1,
                          .connect_timeout = 5};
  tm_err_clear(err);
  return tm_session_open(&o, &b->s, err);
}

static void bench_connect(bench *b) {
  tm_err err = {0};
  assert_ok_err(bench_try_connect(b, &err), &err);
  assert_ok_err(tm_session_coordinator(b->s, 10000, &b->c, &err), &err);
}

static void bench_open(bench *b, int32_t workers, int32_t ps) {
  bench_tasks(b, workers, ps);
  bench_connect(b);
}

static void bench_disconnect(bench *b) {
  tm_session_coordinator_close(b->s);
  tm_session_close(b->s);
}

static void bench_close(bench *b) {
  bench_disconnect(b);
  for (int32_t i = 0; i < b->nworker; i++)
    if (b->worker[i].pid) task_kill(&b->worker[i]);
  for (int32_t i = 0; i < b->nps; i++)
    if (b->ps[i].pid) task_kill(&b->ps[i]);
}

static void bench_counter(bench *b) {
  tm_err err = {0};
  tm_var_info *info;
  tm_shape s = tm_shape_scalar();
  tm_init zeros = {.kind = "zeros"};
  assert_ok(tm_var_info_new(COUNTER, TM_F32, &s, "counter", true, 1, &info));
  assert_ok_err(tm_session_create(b->s, info, &zeros, NULL, &err), &err);
  tm_var_info_unref(info);
}

/* --- functions --- */

static tm_graph *finish(tm_graph *g, tm_ref out, int32_t nout) {
  tm_graph *opt;
  tm_err err = {0};
  tm_err_clear(&err);
  assert_ok(tm_graph_finish(g, &out, nout));
  assert_ok_err(tm_graph_optimize(g, &opt, &err), &err);
  tm_graph_unref(g);
  return opt;
}

static tm_ref constant(tm_graph *g, float x) {
  tm_tensor *t;
  tm_ref r = {0, 0};
  assert_ok(tm_tensor_f32(x, &t));
  assert_ok(tm_graph_add_const(g, t, &r.node));
  tm_tensor_unref(t);
  return r;
}

static tm_attr *attr(const tm_op *op, tm_attrs *a, const char *name) {
  return &a->a[tm_op_attr_index(op, name)];
}

static tm_ref apply(tm_graph *g, const char *name, tm_attrs *a, const tm_ref *in,
                    int32_t nin) {
  const tm_op *op = tm_op_find(name);
  tm_err err = {0};
  tm_ref r = {0, 0};
  tm_err_clear(&err);
  a->n = tm_op_sig(op)->nattr;
  assert_ok_err(tm_op_complete_attrs(op, a, &err), &err);
  assert_ok_err(tm_graph_add(g, op, in, nin, a, &r.node, &err), &err);
  tm_attrs_release(a);
  return r;
}

static tm_ref counter_op(tm_graph *g, const char *name, const tm_ref *in, int32_t nin,
                         const char *mode) {
  const tm_op *op = tm_op_find(name);
  tm_attrs a;
  memset(&a, 0, sizeof a);
  tm_attr_set_int(attr(op, &a, "uid"), TM_ATTR_INT, COUNTER);
  tm_attr_set_int(attr(op, &a, "dtype"), TM_ATTR_DTYPE, TM_F32);
  assert_ok(tm_attr_set_ints(attr(op, &a, "shape"), TM_ATTR_SHAPE, NULL, 0));
  if (mode) assert_ok(tm_attr_set_str(attr(op, &a, "mode"), mode, strlen(mode)));
  return apply(g, name, &a, in, nin);
}

/* counter += 1; return counter */
static tm_graph *count_function(void) {
  tm_graph *g;
  assert_ok(tm_graph_new("count", &g));
  tm_ref one = constant(g, 1);
  counter_op(g, "assign_variable", &one, 1, "add");
  return finish(g, counter_op(g, "read_variable", NULL, 0, NULL), 1);
}

/* return check_numerics(NaN) */
static tm_graph *bad_function(void) {
  tm_graph *g;
  tm_attrs a;
  memset(&a, 0, sizeof a);
  assert_ok(tm_graph_new("bad", &g));
  tm_ref in = constant(g, 0.0F / 0.0F);
  assert_ok(tm_attr_set_str(attr(tm_op_find("check_numerics"), &a, "message"), "x", 1));
  apply(g, "check_numerics", &a, &in, 1);
  return finish(g, in, 1);
}

/* sleep(seconds); counter += 1 */
static tm_graph *slow_function(double seconds) {
  tm_graph *g;
  tm_attrs a;
  tm_ref none = {0, 0};
  memset(&a, 0, sizeof a);
  assert_ok(tm_graph_new("slow", &g));
  tm_attr_set_float(&a.a[0], seconds);
  apply(g, "sleep", &a, NULL, 0);
  tm_ref one = constant(g, 1);
  counter_op(g, "assign_variable", &one, 1, "add");
  return finish(g, none, 0);
}

/* return x */
static tm_graph *echo_function(const tm_type *type) {
  tm_graph *g;
  tm_ref r = {0, 0};
  assert_ok(tm_graph_new("echo", &g));
  assert_ok(tm_graph_add_arg(g, type, &r.node));
  return finish(g, r, 1);
}

/* return iterator:next() */
static tm_graph *next_function(const tm_dataset *ds) {
  tm_graph *g;
  tm_attrs a;
  tm_ref it = {0, 0};
  memset(&a, 0, sizeof a);
  assert_ok(tm_graph_new("next", &g));
  assert_ok(tm_graph_add_iterator(g, tm_dataset_types(ds), 1, &it.node));
  assert_ok(tm_attr_set_types(&a.a[0], tm_dataset_types(ds), 1));
  return finish(g, apply(g, "iterator_next", &a, &it, 1), 1);
}

static tm_remote_value *schedule(bench *b, tm_graph *g, const tm_carg *arg,
                                 int32_t narg) {
  tm_err err = {0};
  tm_remote_value *v;
  tm_err_clear(&err);
  assert_ok_err(tm_coordinator_schedule(b->c, g, arg, narg, &v, &err), &err);
  return v;
}

static void join(bench *b) {
  tm_err err = {0};
  tm_err_clear(&err);
  assert_ok_err(tm_coordinator_join(b->c, 20000000000, NULL, &err), &err);
}

static tm_tensor *value_of(tm_remote_value *v) {
  tm_err err = {0};
  tm_tensor **out;
  int32_t n;
  tm_err_clear(&err);
  assert_ok_err(tm_remote_value_wait(v, 20000000000, NULL, &out, &n, &err), &err);
  assert_int_equal(n, 1);
  tm_tensor *t = tm_tensor_ref(out[0]);
  tm_remote_value_unref(v);
  return t;
}

static float number_of(tm_remote_value *v) {
  tm_tensor *t = value_of(v);
  float x = *(float *)t->v.data;
  tm_tensor_unref(t);
  return x;
}

/* --- tests --- */

static void closures_of_one_worker_see_each_other_in_order(void **state) {
  (void)state;
  enum { N = 1000 };
  bench b;
  bench_open(&b, 1, 2);
  bench_counter(&b);
  tm_graph *g = count_function();
  tm_remote_value *v[N];
  for (int i = 0; i < N; i++) v[i] = schedule(&b, g, NULL, 0);
  join(&b);
  for (int i = 0; i < N; i++) assert_float_equal(number_of(v[i]), (float)(i + 1), 0);
  tm_graph_unref(g);
  bench_close(&b);
}

static void three_workers_lose_no_update_and_are_counted(void **state) {
  (void)state;
  enum { N = 3000 };
  bench b;
  tm_err err = {0};
  bench_open(&b, 3, 2);
  bench_counter(&b);
  tm_graph *g = count_function();
  for (int i = 0; i < N; i++) tm_remote_value_unref(schedule(&b, g, NULL, 0));
  join(&b);
  assert_float_equal(number_of(schedule(&b, g, NULL, 0)), N + 1, 0);
  tm_coordinator_stats st;
  tm_worker_stats w[3];
  tm_store_stats ps;
  tm_coordinator_get_stats(b.c, &st, w, 3);
  assert_int_equal(st.steps, N + 1);
  assert_int_equal(st.updates, N + 1);
  assert_int_equal(st.reads, N + 1);
  assert_ok_err(tm_session_ps_stats(b.s, 0, &ps, &err), &err);
  assert_int_equal(ps.updates, N + 1);
  assert_int_equal(ps.variables, 1);
  tm_graph_unref(g);
  bench_close(&b);
}

static void arguments_and_results_of_all_sizes_come_back(void **state) {
  (void)state;
  bench b;
  tm_err err = {0};
  const int64_t sizes[] = {0, 1, 3, 255, 256, 257, 100000, 2000003};
  bench_open(&b, 2, 1);
  for (size_t i = 0; i < TM_COUNT(sizes); i++) {
    tm_type type = {TM_F32, {1, {sizes[i]}}};
    tm_tensor *t, *back;
    assert_ok(tm_tensor_new(TM_F32, &type.shape, &t, &err));
    for (int64_t k = 0; k < sizes[i]; k++) ((float *)t->v.data)[k] = (float)k;
    tm_graph *g = echo_function(&type);
    tm_carg arg = {.kind = TM_CARG_TENSOR, .t = t};
    back = value_of(schedule(&b, g, &arg, 1));
    assert_true(tm_shape_equal(&back->v.shape, &t->v.shape));
    assert_memory_equal(back->v.data, t->v.data, (size_t)sizes[i] * 4);
    tm_tensor_unref(t);
    tm_tensor_unref(back);
    tm_graph_unref(g);
  }
  tm_type text = {TM_STRING, {1, {2}}};
  tm_tensor *t, *back;
  tm_graph *g = echo_function(&text);
  assert_ok(tm_tensor_strings(&text.shape, (tm_str[]){{"moon", 4}, {"", 0}}, &t, &err));
  tm_carg arg = {.kind = TM_CARG_TENSOR, .t = t};
  back = value_of(schedule(&b, g, &arg, 1));
  assert_memory_equal(((tm_str *)back->v.data)[0].p, "moon", 4);
  assert_int_equal(((tm_str *)back->v.data)[1].n, 0);
  tm_tensor_unref(t);
  tm_tensor_unref(back);
  tm_graph_unref(g);
  bench_close(&b);
}

static void iterators_live_on_the_workers(void **state) {
  (void)state;
  bench b;
  tm_err err = {0};
  tm_dataset *ds;
  bench_open(&b, 1, 1);
  tm_err_clear(&err);
  assert_ok_err(tm_data_range(0, 20, 1, &ds, &err), &err);
  tm_graph *g = next_function(ds);
  assert_ok_err(tm_coordinator_add_iterator(b.c, 7, ds, 1, false, &err), &err);
  tm_carg arg = {.kind = TM_CARG_PER_WORKER, .resource = 7};
  for (int64_t i = 0; i < 20; i++) {
    tm_tensor *t = value_of(schedule(&b, g, &arg, 1));
    assert_int_equal(*(int64_t *)t->v.data, i);
    tm_tensor_unref(t);
  }
  tm_remote_value_unref(schedule(&b, g, &arg, 1));
  assert_int_equal(tm_coordinator_join(b.c, 10000000000, NULL, &err), TM_ERANGE);
  tm_coordinator_drop(b.c, 7);
  tm_graph_unref(g);
  tm_dataset_unref(ds);
  bench_close(&b);
}

static void an_error_comes_with_task_op_and_step(void **state) {
  (void)state;
  bench b;
  tm_err err = {0};
  bench_open(&b, 2, 1);
  bench_counter(&b);
  tm_graph *bad = bad_function(), *g = count_function();
  tm_remote_value_unref(schedule(&b, bad, NULL, 0));
  tm_err_clear(&err);
  assert_int_equal(tm_coordinator_join(b.c, 10000000000, NULL, &err), TM_EINVAL);
  assert_non_null(strstr(err.task, "/job:worker/task:"));
  assert_string_equal(err.op, "check_numerics");
  assert_int_equal(err.step, 1);
  assert_float_equal(number_of(schedule(&b, g, NULL, 0)), 1, 0); /* usable again */
  tm_graph_unref(bad);
  tm_graph_unref(g);
  bench_close(&b);
}

/* Wait until the worker is in this state. */
static void await_state(bench *b, int32_t i, const char *state) {
  tm_coordinator_stats st;
  tm_worker_stats w[TASKS];
  int64_t end = tm_now_ns() + 10000000000;
  do {
    tm_coordinator_get_stats(b->c, &st, w, TASKS);
    if (strcmp(w[i].state, state) == 0) return;
    tm_sleep_ns(2000000);
  } while (tm_now_ns() < end);
  assert_string_equal(w[i].state, state);
}

static void count_with_a_lost_worker(int signal) {
  enum { N = 60 };
  bench b;
  bench_open(&b, 3, 2);
  bench_counter(&b);
  tm_graph *slow = slow_function(0.02), *g = count_function();
  for (int i = 0; i < N; i++) tm_remote_value_unref(schedule(&b, slow, NULL, 0));
  tm_sleep_ns(100000000);
  kill(b.worker[1].pid, signal);
  join(&b);
  await_state(&b, 1, "down");
  if (signal == SIGSTOP) {
    kill(b.worker[1].pid, SIGCONT); /* its late updates are refused */
    await_state(&b, 1, "ready");
    tm_sleep_ns(300000000);
  }
  assert_float_equal(number_of(schedule(&b, g, NULL, 0)), N + 1, 0);
  tm_coordinator_stats st;
  tm_worker_stats w[3];
  tm_coordinator_get_stats(b.c, &st, w, 3);
  assert_true(st.retries > 0);
  tm_graph_unref(g);
  tm_graph_unref(slow);
  bench_close(&b);
}

static void closures_of_a_killed_worker_are_run_once_by_others(void **state) {
  (void)state;
  count_with_a_lost_worker(SIGKILL);
}

static void closures_of_a_stopped_worker_are_run_once_by_others(void **state) {
  (void)state;
  count_with_a_lost_worker(SIGSTOP);
}

static void a_dead_ps_is_unavailable_by_name(void **state) {
  (void)state;
  bench b;
  tm_err err = {0};
  bench_open(&b, 2, 1);
  bench_counter(&b);
  tm_graph *g = count_function();
  tm_remote_value_unref(schedule(&b, g, NULL, 0));
  join(&b);
  task_kill(&b.ps[0]);
  int64_t start = tm_now_ns();
  tm_status s;
  do { /* by schedule, or by join: that it is lost is seen at any moment */
    tm_err_clear(&err);
    s = tm_coordinator_schedule(b.c, g, NULL, 0, NULL, &err);
    if (s == TM_OK) s = tm_coordinator_join(b.c, 10000000000, NULL, &err);
  } while (s == TM_OK);
  assert_int_equal(s, TM_EUNAVAILABLE);
  assert_true(tm_now_ns() - start < 2000000000);
  assert_non_null(strstr(err.msg, "/job:ps/task:0"));
  tm_sleep_ns(200000000); /* a worker may have seen it before the chief did */
  /* It stays lost, for all and at once. */
  for (int i = 0; i < 3; i++) {
    tm_err_clear(&err);
    assert_int_equal(tm_coordinator_join(b.c, -1, NULL, &err), TM_EUNAVAILABLE);
    assert_string_equal(err.task, "/job:ps/task:0");
    assert_int_equal(tm_coordinator_schedule(b.c, g, NULL, 0, NULL, &err),
                     TM_EUNAVAILABLE);
  }
  tm_graph_unref(g);
  bench_close(&b);
}

static void a_new_chief_finds_the_tasks_fresh(void **state) {
  (void)state;
  bench b;
  bench_tasks(&b, 2, 2);
  tm_graph *g = count_function();
  for (int chief = 0; chief < 3; chief++) {
    bench_connect(&b);
    bench_counter(&b);
    for (int i = 0; i < 9; i++) tm_remote_value_unref(schedule(&b, g, NULL, 0));
    join(&b);
    assert_float_equal(number_of(schedule(&b, g, NULL, 0)), 10, 0);
    if (chief < 2) bench_disconnect(&b);
  }
  tm_graph_unref(g);
  bench_close(&b);
}

static void tasks_end_with_nothing_left_when_told_to_stop(void **state) {
  (void)state;
  bench b;
  bench_open(&b, 2, 2);
  bench_counter(&b);
  tm_graph *g = count_function();
  for (int i = 0; i < 20; i++) tm_remote_value_unref(schedule(&b, g, NULL, 0));
  join(&b);
  tm_session_coordinator_close(b.s);
  tm_session_stop_tasks(b.s);
  for (int i = 0; i < 4; i++) {
    int status;
    task *t = i < 2 ? &b.worker[i] : &b.ps[i - 2];
    assert_int_equal(waitpid(t->pid, &status, 0), t->pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0); /* 4: bytes were not given back */
  }
  tm_session_close(b.s);
  tm_graph_unref(g);
}

static void a_request_from_the_time_of_another_chief_is_refused(void **state) {
  (void)state;
  bench b;
  tm_err err = {0};
  tm_ps_client *old;
  bench_open(&b, 1, 1);
  bench_counter(&b);
  tm_channel_options o = {
      .address = b.ps[0].address,
      .self = {.cluster = "test", .task = "/job:worker/task:0", .incarnation = 5},
      .silence_ns = 60000000000};
  assert_int_equal(tm_ps_client_remote(&o, &old, &err), TM_EABORTED);
  assert_ok_err(tm_term_claim(&o, &o.self.term, &err), &err);
  assert_true(o.self.term.number == 1);
  assert_ok_err(tm_ps_client_remote(&o, &old, &err), &err);
  bench_disconnect(&b);
  bench_connect(&b);
  bench_counter(&b);
  float one[1] = {1};
  tm_ps_update up = {
      .kind = TM_PS_ADD, .uid = COUNTER, .value = {TM_F32, {0, {0}}, one}};
  tm_ps_request rq = {.nup = 1, .up = &up};
  assert_ok_err(old->begin(old, &rq, &err), &err);
  assert_int_equal(old->wait(old, &rq, &err), TM_EABORTED);
  assert_string_equal(err.task, "/job:ps/task:0");
  old->close(old);
  assert_int_equal(tm_ps_client_remote(&o, &old, &err), TM_EABORTED);
  assert_non_null(strstr(err.msg, "is in term 2"));
  o.self.term.number = 3; /* nobody has started that one */
  assert_int_equal(tm_ps_client_remote(&o, &old, &err), TM_EUNAVAILABLE);
  bench_close(&b);
}

static void terms_have_an_order(void **state) {
  (void)state;
  const tm_term t[] = {{0, 0},          {1, 5}, {1, 6},
                       {1, UINT64_MAX}, {2, 0}, {UINT64_MAX, 1}};
  for (size_t i = 0; i < TM_COUNT(t); i++)
    for (size_t k = 0; k < TM_COUNT(t); k++) {
      int order = tm_term_order(&t[i], &t[k]);
      assert_true(i < k ? order < 0 : i > k ? order > 0 : order == 0);
    }
}

static void a_cluster_described_wrongly_is_told(void **state) {
  (void)state;
  bench b;
  tm_err err = {0};
  bench_tasks(&b, 2, 1);
  task swap = b.worker[0];
  b.worker[0] = b.worker[1];
  b.worker[1] = swap;
  assert_int_equal(bench_try_connect(&b, &err), TM_EINVAL);
  assert_non_null(strstr(err.msg, "/job:worker/task:1"));
  swap = b.ps[0];
  b.ps[0] = b.worker[0];
  b.worker[0] = swap;
  assert_int_not_equal(bench_try_connect(&b, &err), TM_OK);
  for (int i = 0; i < 2; i++) task_kill(&b.worker[i]);
  task_kill(&b.ps[0]);
}

static void join_ends_when_no_chief_comes_or_the_only_one_has_gone(void **state) {
  (void)state;
  tm_server *s, *again;
  tm_err err = {0};
  tm_server_options o = {.job = "worker",
                         .address = "127.0.0.1:0",
                         .cluster_id = "test",
                         .chief_timeout = 0.1};
  tm_err_clear(&err);
  assert_ok_err(tm_server_start(&o, &s, &err), &err);
  assert_int_equal(tm_server_join(s, NULL, &err), TM_ETIMEOUT);
  char address[64];
  snprintf(address, sizeof address, "127.0.0.1:%u", (unsigned)tm_server_port(s));
  o.address = address;
  tm_err_clear(&err);
  assert_int_equal(tm_server_start(&o, &again, &err), TM_EEXISTS);
  assert_non_null(strstr(err.msg, address));
  tm_server_stop(s);
  assert_ok(tm_server_join(s, NULL, &err));
  tm_server_free(s);
  o.job = "wrker";
  assert_int_equal(tm_server_start(&o, &s, &err), TM_EINVAL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(closures_of_one_worker_see_each_other_in_order),
      cmocka_unit_test(three_workers_lose_no_update_and_are_counted),
      cmocka_unit_test(arguments_and_results_of_all_sizes_come_back),
      cmocka_unit_test(iterators_live_on_the_workers),
      cmocka_unit_test(an_error_comes_with_task_op_and_step),
      cmocka_unit_test(closures_of_a_killed_worker_are_run_once_by_others),
      cmocka_unit_test(closures_of_a_stopped_worker_are_run_once_by_others),
      cmocka_unit_test(a_dead_ps_is_unavailable_by_name),
      cmocka_unit_test(a_new_chief_finds_the_tasks_fresh),
      cmocka_unit_test(tasks_end_with_nothing_left_when_told_to_stop),
      cmocka_unit_test(a_request_from_the_time_of_another_chief_is_refused),
      cmocka_unit_test(terms_have_an_order),
      cmocka_unit_test(a_cluster_described_wrongly_is_told),
      cmocka_unit_test(join_ends_when_no_chief_comes_or_the_only_one_has_gone),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
