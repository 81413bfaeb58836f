/* A ps behind a proxy that cuts the wire: a request is applied once and answered. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "cluster/ps_remote.h"
#include "cluster/ps_service.h"
#include "net/loop.h"
#include "test.h"

/* --- a ps, and a wire to it --- */

typedef struct server {
  tm_ps_service *service;
  tm_netloop *loop;
  char address[64];
  uint64_t incarnation;
  atomic_int slow_ms; /* before a request is handled */
} server;

static void on_message(void *ud, tm_conn *c, tm_message *m) {
  server *s = ud;
  int ms = atomic_load(&s->slow_ms);
  if (ms) tm_sleep_ns((int64_t)ms * 1000000);
  if (!tm_ps_service_message(s->service, c, m))
    tm_conn_close(c, TM_EINVAL, "not for a ps");
}

static void server_listen(server *s, const char *address) {
  tm_err err = {0};
  uint16_t port;
  assert_ok(tm_netloop_new(2, &s->loop));
  tm_listen_options o = {.address = address,
                         .self = {"c", "/job:ps/task:0", "", ++s->incarnation},
                         .data = {1ull << 32, 0, 60000000000},
                         .events = {NULL, on_message, NULL, s}};
  assert_ok_err(tm_netloop_listen(s->loop, &o, &port, &err), &err);
  snprintf(s->address, sizeof s->address, "127.0.0.1:%u", (unsigned)port);
}

static void server_start(server *s) {
  s->incarnation = 0;
  atomic_init(&s->slow_ms, 0);
  assert_ok(tm_ps_service_new("/job:ps/task:0", &s->service));
  server_listen(s, "127.0.0.1:0");
}

static void server_stop(server *s) {
  tm_netloop_free(s->loop);
  tm_ps_service_free(s->service);
}

typedef struct wire {
  pid_t pid;
  FILE *out;
  char control[64], address[64];
  unsigned asked;
} wire;

static void wire_start(wire *w, const char *target) {
  char path[512], line[128];
  int fd[2], port;
  ssize_t n = readlink("/proc/self/exe", path, sizeof path - 16);
  assert_true(n > 0);
  path[n] = 0;
  *strrchr(path, '/') = 0; /* build/spec/test_x: build/proxy */
  strcpy(strrchr(path, '/'), "/proxy");
  strcpy(w->control, "/tmp/tidemill-wire-XXXXXX");
  int made = mkstemp(w->control);
  assert_true(made >= 0);
  close(made);
  w->asked = 0;
  assert_int_equal(pipe(fd), 0);
  w->pid = fork();
  if (w->pid == 0) {
    dup2(fd[1], 1);
    close(fd[0]);
    close(fd[1]);
    execl(path, path, target, w->control, (char *)NULL);
    _exit(127);
  }
  close(fd[1]);
  w->out = fdopen(fd[0], "r");
  assert_non_null(fgets(line, sizeof line, w->out));
  assert_int_equal(sscanf(line, "port %d", &port), 1);
  snprintf(w->address, sizeof w->address, "127.0.0.1:%d", port);
}

typedef struct count {
  unsigned long long up, down;
  int conns;
  unsigned cuts;
} count;

static count wire_say(wire *w, const char *command) {
  char line[128];
  unsigned k;
  count c;
  FILE *f = fopen(w->control, "a");
  assert_non_null(f);
  fprintf(f, "%s\n", command);
  fclose(f);
  assert_non_null(fgets(line, sizeof line, w->out));
  assert_int_equal(sscanf(line, "done %u up=%llu down=%llu conns=%d cuts=%u", &k, &c.up,
                          &c.down, &c.conns, &c.cuts),
                   5);
  assert_int_equal(k, ++w->asked);
  return c;
}

static void wire_end(wire *w) {
  int status;
  kill(w->pid, SIGKILL);
  assert_int_equal(waitpid(w->pid, &status, 0), w->pid);
  fclose(w->out);
  unlink(w->control);
}

static tm_ps_client *dial(const char *address, double seconds, tm_cancel *lost) {
  tm_ps_client *c;
  tm_err err = {0};
  tm_channel_options o = {.address = address,
                          .self = {"c", "/job:worker/task:0", "", 2},
                          .silence_ns = (int64_t)(seconds * 1e9),
                          .spin_ns = -1,
                          .lost = lost};
  assert_ok_err(tm_ps_client_remote(&o, &c, &err), &err);
  return c;
}

/* --- what is asked --- */

enum { WIDE = 300 };

static const tm_shape wide = {1, {WIDE}};

static void create(tm_ps_client *c) {
  tm_err err = {0};
  tm_shard_spec sp = {.uid = 1,
                      .dtype = TM_F32,
                      .shape = wide,
                      .full_shape = wide,
                      .init = {.kind = "zeros"}};
  assert_ok_err(c->create(c, &sp, 1, &err), &err);
}

/* Add one to all elements and read them; closure 0: without a token.  The value. */
static float add_one(tm_ps_client *c, uint64_t closure) {
  static float ones[WIDE];
  tm_err err = {0};
  for (int i = 0; i < WIDE; i++) ones[i] = 1;
  tm_ps_update up = {.kind = TM_PS_ADD, .uid = 1, .value = {TM_F32, wide, ones}};
  tm_ps_read rd = {.kind = TM_PS_DENSE, .uid = 1, .dst = {TM_F32, wide, NULL}};
  tm_ps_request rq = {
      .token = {.incarnation = 9, .closure = closure, .turn = 1, .lowest = closure},
      .nup = 1,
      .up = &up,
      .nrd = 1,
      .rd = &rd};
  if (!closure) rq.token = (tm_ps_token){0};
  assert_ok_err(c->begin(c, &rq, &err), &err);
  assert_ok_err(c->wait(c, &rq, &err), &err);
  if (rq.up_status || rq.rd_status) fail_msg("%s", rq.err.msg);
  const float *x = rd.out->v.data;
  for (int i = 1; i < WIDE; i++) assert_true(x[i] == x[0]);
  float value = x[0];
  tm_tensor_unref(rd.out);
  return value;
}

/* --- tests --- */

/* Cut after every so many bytes of a request and of its answer. */
static void cut_everywhere(bool closures) {
  server s;
  wire w;
  server_start(&s);
  wire_start(&w, s.address);
  tm_ps_client *c = dial(w.address, 5, NULL);
  create(c);
  count before = wire_say(&w, "count");
  float want = 1;
  uint64_t closure = 1;
  assert_true(add_one(c, closures ? closure++ : 0) == want);
  count after = wire_say(&w, "count");
  unsigned long long bytes[2] = {after.up - before.up, after.down - before.down};
  unsigned made = 0;
  for (int way = 0; way < 2; way++)
    for (unsigned long long at = 0; at < bytes[way]; at += at < 80 ? 9 : 97) {
      char command[64];
      snprintf(command, sizeof command, "cutafter %s %llu", way ? "down" : "up", at);
      wire_say(&w, command);
      assert_true(add_one(c, closures ? closure++ : 0) == ++want);
      made++;
    }
  after = wire_say(&w, "count");
  assert_int_equal(after.cuts, made);
  c->close(c);
  wire_end(&w);
  server_stop(&s);
}

static void a_connection_cut_anywhere_is_made_again_and_nothing_is_applied_twice(
    void **state) {
  (void)state;
  cut_everywhere(true);
}

static void what_the_chief_assigns_itself_is_applied_once_too(void **state) {
  (void)state;
  cut_everywhere(false);
}

static void a_request_sent_again_waits_for_the_first_to_be_applied(void **state) {
  (void)state;
  server s;
  wire w;
  server_start(&s);
  wire_start(&w, s.address);
  tm_ps_client *c = dial(w.address, 5, NULL);
  create(c);
  for (uint64_t i = 1; i <= 20; i++) {
    atomic_store(&s.slow_ms, 3); /* the second comes while the first is in hand */
    wire_say(&w, "cutafter up 1500");
    assert_true(add_one(c, i) == (float)i);
  }
  c->close(c);
  wire_end(&w);
  server_stop(&s);
}

static void creating_and_dropping_survive_a_cut(void **state) {
  (void)state;
  server s;
  wire w;
  tm_err err = {0};
  tm_store_stats st;
  server_start(&s);
  wire_start(&w, s.address);
  tm_ps_client *c = dial(w.address, 5, NULL);
  static const char *const cuts[] = {"cutafter up 0", "cutafter up 30",
                                     "cutafter down 0", "cutafter down 20"};
  for (size_t i = 0; i < TM_COUNT(cuts); i++) {
    wire_say(&w, cuts[i]);
    create(c);
    wire_say(&w, cuts[i]);
    assert_ok_err(c->stats(c, &st, &err), &err);
    assert_int_equal(st.bytes_held, WIDE * 4);
    wire_say(&w, cuts[i]);
    assert_ok_err(c->refuse(c, 55, &err), &err);
    wire_say(&w, cuts[i]);
    assert_ok_err(c->drop(c, 1, 0, &err), &err);
    assert_ok_err(c->stats(c, &st, &err), &err);
    assert_int_equal(st.bytes_held, 0);
  }
  assert_int_equal(wire_say(&w, "count").cuts, 16);
  c->close(c);
  wire_end(&w);
  server_stop(&s);
}

static void a_ps_that_was_started_anew_is_unavailable_not_empty(void **state) {
  (void)state;
  server s;
  tm_err err = {0};
  char address[64];
  server_start(&s);
  tm_ps_client *c = dial(s.address, 5, NULL);
  create(c);
  assert_true(add_one(c, 1) == 1);
  snprintf(address, sizeof address, "%s", s.address);
  tm_netloop_free(s.loop);
  assert_ok(tm_ps_service_reset(s.service, 0, 0));
  server_listen(&s, address);
  tm_ps_read rd = {.kind = TM_PS_DENSE, .uid = 1, .dst = {TM_F32, wide, NULL}};
  tm_ps_request rq = {.nrd = 1, .rd = &rd};
  tm_status st = c->begin(c, &rq, &err);
  if (st == TM_OK) st = c->wait(c, &rq, &err);
  assert_int_equal(st, TM_EUNAVAILABLE);
  assert_non_null(strstr(err.msg, "started anew"));
  assert_string_equal(err.task, "/job:ps/task:0");
  c->close(c);
  server_stop(&s);
}

/* How long a request takes to fail. */
static double fails(tm_ps_client *c, tm_status want) {
  tm_err err = {0};
  int64_t start = tm_now_ns();
  tm_ps_read rd = {.kind = TM_PS_DENSE, .uid = 1, .dst = {TM_F32, wide, NULL}};
  tm_ps_request rq = {.nrd = 1, .rd = &rd};
  tm_status st = c->begin(c, &rq, &err);
  if (st == TM_OK) st = c->wait(c, &rq, &err);
  assert_int_equal(st, want);
  assert_string_equal(err.task, "/job:ps/task:0");
  return (double)(tm_now_ns() - start) * 1e-9;
}

static void trying_again_has_an_end(void **state) {
  (void)state;
  server s;
  wire w;
  server_start(&s);
  wire_start(&w, s.address);
  tm_ps_client *c = dial(w.address, 1, NULL);
  create(c);
  wire_say(&w, "refuse on");
  wire_say(&w, "cut");
  assert_true(fails(c, TM_EUNAVAILABLE) < 1.0); /* refused at once: soon over */
  wire_say(&w, "refuse off");
  assert_true(add_one(c, 1) == 1); /* and usable again */
  wire_say(&w, "drop on");         /* silence */
  double t = fails(c, TM_EUNAVAILABLE);
  assert_true(t > 0.8 && t < 1.8);
  wire_say(&w, "drop off");
  assert_true(add_one(c, 2) == 2);
  c->close(c);
  wire_end(&w);
  server_stop(&s);
}

static void a_ps_known_to_be_lost_is_not_tried_again(void **state) {
  (void)state;
  server s;
  wire w;
  tm_cancel lost = {0};
  server_start(&s);
  wire_start(&w, s.address);
  tm_ps_client *c = dial(w.address, 5, &lost);
  create(c);
  wire_say(&w, "refuse on");
  wire_say(&w, "cut");
  tm_cancel_set(&lost);
  assert_true(fails(c, TM_EUNAVAILABLE) < 0.5);
  c->close(c);
  wire_end(&w);
  server_stop(&s);
}

static void bytes_are_all_given_back(void **state) {
  (void)state;
  assert_int_equal(tm_mem_live(), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(
          a_connection_cut_anywhere_is_made_again_and_nothing_is_applied_twice),
      cmocka_unit_test(what_the_chief_assigns_itself_is_applied_once_too),
      cmocka_unit_test(a_request_sent_again_waits_for_the_first_to_be_applied),
      cmocka_unit_test(creating_and_dropping_survive_a_cut),
      cmocka_unit_test(a_ps_that_was_started_anew_is_unavailable_not_empty),
      cmocka_unit_test(trying_again_has_an_end),
      cmocka_unit_test(a_ps_known_to_be_lost_is_not_tried_again),
      cmocka_unit_test(bytes_are_all_given_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
