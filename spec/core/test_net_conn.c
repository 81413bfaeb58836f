/* Channels and connections over real sockets. */
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/addr.h"
#include "net/loop.h"
#include "test.h"

/* An echo server: answers a message with its metadata and payload. */
typedef struct echo {
  tm_netloop *loop;
  uint16_t port;
  char address[64];
  atomic_int closed, messages;
} echo;

static void echo_release(void *ud) {
  tm_segment *s = ud;
  tm_free_aligned((void *)(uintptr_t)s->p, s->n);
  tm_free(s, sizeof *s);
}

static void echo_message(void *ud, tm_conn *c, tm_message *m) {
  echo *e = ud;
  atomic_fetch_add(&e->messages, 1);
  tm_buf meta = {(uint8_t *)(uintptr_t)m->meta, m->f.meta_bytes, m->f.meta_bytes, 0};
  tm_segment *seg = NULL;
  if (m->payload) {
    assert_true(((uintptr_t)m->payload & 63) == 0);
    seg = tm_malloc(sizeof *seg);
    *seg = (tm_segment){m->payload, m->f.payload_bytes};
    m->payload = NULL;
  }
  tm_conn_send(c, &m->f, &meta, seg, seg ? 1 : 0, seg ? echo_release : NULL, seg);
}

static void echo_closed(void *ud, tm_conn *c, const tm_err *why) {
  (void)c;
  assert_int_not_equal(why->code, TM_OK);
  atomic_fetch_add(&((echo *)ud)->closed, 1);
}

static tm_status echo_hello(void *ud, tm_conn *c, const tm_hello *peer, tm_err *err) {
  (void)ud;
  (void)c;
  if (strcmp(peer->task, "stranger") == 0)
    return tm_fail(err, TM_EABORTED, "no strangers here");
  return TM_OK;
}

static void echo_start_at(echo *e, int threads, const char *address) {
  tm_err err = {0};
  memset(e, 0, sizeof *e);
  assert_ok(tm_netloop_new(threads, &e->loop));
  tm_listen_options o = {.address = address,
                         .self = {"c", "/job:ps/task:0", "", 1},
                         .data = {1u << 30, 0, 2000000000},
                         .control = {1u << 30, 50000000, 300000000},
                         .events = {echo_hello, echo_message, echo_closed, e}};
  assert_ok_err(tm_netloop_listen(e->loop, &o, &e->port, &err), &err);
  snprintf(e->address, sizeof e->address, "127.0.0.1:%u", (unsigned)e->port);
}

static void echo_start(echo *e, int threads) {
  echo_start_at(e, threads, "127.0.0.1:0");
}
static void echo_stop(echo *e) { tm_netloop_free(e->loop); }

static tm_channel_options client(const echo *e) {
  tm_channel_options o = {.address = e->address,
                          .expect_task = "/job:ps/task:0",
                          .self = {"c", "/job:worker/task:0", "data", 2},
                          .silence_ns = 60000000000,
                          .spin_ns = -1};
  return o;
}

static void ask(tm_channel *ch, size_t nmeta, size_t n1, size_t n2) {
  tm_err err = {0};
  tm_buf meta = TM_BUF_INIT(1 << 25);
  void *p;
  uint8_t *a = malloc(n1 + 1), *b = malloc(n2 + 1), *back = malloc(n1 + n2 + 1);
  for (size_t i = 0; i < n1; i++) a[i] = (uint8_t)(i * 7);
  for (size_t i = 0; i < n2; i++) b[i] = (uint8_t)(i * 11 + 1);
  if (nmeta) {
    assert_ok(tm_buf_grow(&meta, nmeta, &p));
    memset(p, 'm', nmeta);
  }
  tm_segment seg[2] = {{a, n1}, {b, n2}};
  tm_frame f = {.kind = 100, .id = n1 + 5};
  assert_ok_err(tm_channel_send(ch, &f, &meta, seg, 2, &err), &err);
  const uint8_t *m;
  tm_frame g;
  assert_ok_err(tm_channel_head(ch, &g, &m, &err), &err);
  assert_int_equal(g.id, n1 + 5);
  assert_int_equal(g.meta_bytes, nmeta);
  if (nmeta) assert_memory_equal(m, meta.data, nmeta);
  assert_ok_err(tm_channel_take(ch, back, n1, &err), &err);
  assert_ok_err(tm_channel_take(ch, back + n1, n2, &err), &err);
  assert_ok_err(tm_channel_end(ch, &err), &err);
  if (n1) assert_memory_equal(back, a, n1);
  if (n2) assert_memory_equal(back + n1, b, n2);
  tm_buf_release(&meta);
  free(a);
  free(b);
  free(back);
}

static void frames_of_all_sizes_come_back(void **state) {
  (void)state;
  for (int tcp = 0; tcp < 2; tcp++) {
    echo e;
    tm_channel *ch;
    tm_err err = {0};
    echo_start(&e, 2);
    tm_channel_options o = client(&e);
    o.no_unix = tcp;
    assert_ok_err(tm_channel_open(&o, &ch, &err), &err);
    assert_int_equal(tm_channel_is_unix(ch), !tcp);
    const size_t sizes[] = {0, 1, 63, 64, 65, 4000, 65536, 70001, 3000000};
    for (size_t i = 0; i < TM_COUNT(sizes); i++) {
      ask(ch, sizes[i], sizes[i], 5);
      ask(ch, 3, sizes[TM_COUNT(sizes) - 1 - i], sizes[i]);
    }
    tm_channel_close(ch);
    echo_stop(&e);
    assert_int_equal(e.closed, 1);
  }
}

static void many_clients_are_served_at_once(void **state) {
  (void)state;
  echo e;
  tm_channel *ch[20];
  tm_err err = {0};
  echo_start(&e, 2);
  tm_channel_options o = client(&e);
  for (int i = 0; i < 20; i++) assert_ok_err(tm_channel_open(&o, &ch[i], &err), &err);
  for (int k = 0; k < 5; k++)
    for (int i = 0; i < 20; i++) ask(ch[i], 10, (size_t)(i * 100), 1);
  for (int i = 0; i < 20; i++) tm_channel_close(ch[i]);
  echo_stop(&e);
}

static void another_cluster_and_strangers_are_refused_with_a_reason(void **state) {
  (void)state;
  echo e;
  tm_channel *ch;
  tm_err err = {0};
  echo_start(&e, 1);
  tm_channel_options o = client(&e);
  strcpy(o.self.cluster, "other");
  assert_int_equal(tm_channel_open(&o, &ch, &err), TM_EPERM);
  assert_non_null(strstr(err.msg, "other"));
  assert_null(ch);
  o = client(&e);
  strcpy(o.self.task, "stranger");
  assert_int_equal(tm_channel_open(&o, &ch, &err), TM_EABORTED);
  assert_non_null(strstr(err.msg, "no strangers"));
  o = client(&e);
  o.expect_task = "/job:ps/task:1";
  assert_int_equal(tm_channel_open(&o, &ch, &err), TM_EINVAL);
  assert_non_null(strstr(err.msg, "/job:ps/task:1"));
  echo_stop(&e);
}

static void a_port_in_use_is_told_with_its_address(void **state) {
  (void)state;
  echo e;
  tm_netloop *l;
  tm_err err = {0};
  uint16_t port;
  echo_start(&e, 1);
  assert_ok(tm_netloop_new(1, &l));
  tm_listen_options o = {.address = e.address};
  assert_int_equal(tm_netloop_listen(l, &o, &port, &err), TM_EEXISTS);
  assert_non_null(strstr(err.msg, e.address));
  tm_netloop_free(l);
  echo_stop(&e);
  tm_channel *ch;
  tm_channel_options c = client(&e);
  assert_int_equal(tm_channel_open(&c, &ch, &err), TM_EUNAVAILABLE);
  assert_non_null(strstr(err.msg, e.address));
}

/* Send raw bytes; the server must go on living. */
static void throw_bytes(const echo *e, const void *p, size_t n) {
  int fd;
  tm_err err = {0};
  char sink[512];
  assert_ok_err(tm_addr_connect(e->address, false, 2000000000, NULL, &fd, NULL, &err),
                &err);
  assert_int_equal(send(fd, p, n, MSG_NOSIGNAL), n);
  shutdown(fd, SHUT_WR);
  for (int i = 0; i < 200; i++) {
    ssize_t k = recv(fd, sink, sizeof sink, MSG_DONTWAIT);
    if (k == 0) break;
    if (k < 0) tm_sleep_ns(5000000);
  }
  close(fd);
}

static void malformed_bytes_only_end_their_connection(void **state) {
  (void)state;
  echo e;
  tm_channel *ch;
  tm_err err = {0};
  uint8_t frame[TM_FRAME_HEAD + 256] = {0};
  echo_start(&e, 1);
  throw_bytes(&e, "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: everything\r\n\r\n",
              54);
  tm_frame f = {.kind = 100}; /* no hello first */
  tm_frame_pack(&f, frame);
  throw_bytes(&e, frame, TM_FRAME_HEAD);
  f = (tm_frame){.kind = TM_F_HELLO, .payload_bytes = 1ull << 40};
  tm_frame_pack(&f, frame);
  throw_bytes(&e, frame, sizeof frame);
  f = (tm_frame){.kind = TM_F_HELLO, .meta_bytes = TM_FRAME_MAX_META};
  tm_frame_pack(&f, frame);
  throw_bytes(&e, frame, sizeof frame);
  f = (tm_frame){.kind = TM_F_HELLO, .meta_bytes = 200};
  tm_frame_pack(&f, frame);
  throw_bytes(&e, frame, sizeof frame);
  throw_bytes(&e, frame, 20); /* half a head */
  tm_channel_options o = client(&e);
  assert_ok_err(tm_channel_open(&o, &ch, &err), &err);
  ask(ch, 1, 1, 1);
  tm_channel_close(ch);
  echo_stop(&e);
}

static void a_client_killed_in_the_middle_of_a_frame_leaves_nothing(void **state) {
  (void)state;
  int ready[2];
  assert_int_equal(pipe(ready), 0);
  echo e;
  tm_err err = {0};
  echo_start(&e, 1);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    tm_channel *ch;
    uint8_t head[TM_FRAME_HEAD];
    tm_channel_options o = client(&e);
    if (tm_channel_open(&o, &ch, &err)) _exit(1);
    tm_buf rest = TM_BUF_INIT(1 << 20);
    int fd;
    if (tm_channel_detach(ch, &rest, &fd)) _exit(1);
    tm_frame f = {.kind = 100, .payload_bytes = 1 << 20};
    tm_frame_pack(&f, head);
    if (send(fd, head, sizeof head, 0) < 0 || send(fd, head, 30, 0) < 0) _exit(1);
    if (write(ready[1], "x", 1) < 0) _exit(1);
    for (;;) pause();
  }
  char x;
  assert_int_equal(read(ready[0], &x, 1), 1);
  kill(pid, SIGKILL);
  int status;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFSIGNALED(status));
  for (int i = 0; i < 400 && !e.closed; i++) tm_sleep_ns(5000000);
  assert_int_equal(e.closed, 1);
  assert_int_equal(e.messages, 0);
  close(ready[0]);
  close(ready[1]);
  echo_stop(&e);
}

static void a_server_that_goes_away_is_unavailable_by_name(void **state) {
  (void)state;
  echo e;
  tm_channel *ch;
  tm_err err = {0};
  echo_start(&e, 1);
  tm_channel_options o = client(&e);
  assert_ok_err(tm_channel_open(&o, &ch, &err), &err);
  echo_stop(&e);
  tm_frame f = {.kind = 100};
  const uint8_t *m;
  tm_status s = tm_channel_send(ch, &f, NULL, NULL, 0, &err);
  if (s == TM_OK) s = tm_channel_head(ch, &f, &m, &err);
  assert_int_equal(s, TM_EUNAVAILABLE);
  assert_non_null(strstr(err.msg, "/job:ps/task:0"));
  assert_string_equal(err.task, "/job:ps/task:0");
  tm_channel_close(ch);
}

static void silence_and_cancel_end_a_wait(void **state) {
  (void)state;
  tm_err err = {0};
  const uint8_t *m;
  tm_frame f;
  tm_channel *ch;
  tm_cancel cancel = {0};
  echo e;
  echo_start(&e, 1);
  tm_channel_options o = client(&e);
  o.silence_ns = 60000000;
  assert_ok_err(tm_channel_open(&o, &ch, &err), &err);
  assert_int_equal(tm_channel_head(ch, &f, &m, &err), TM_EUNAVAILABLE); /* no answer */
  assert_non_null(strstr(err.msg, "silent"));
  tm_channel_close(ch);
  o = client(&e);
  o.cancel = &cancel;
  assert_ok_err(tm_channel_open(&o, &ch, &err), &err);
  tm_cancel_set(&cancel);
  assert_int_equal(tm_channel_head(ch, &f, &m, &err), TM_ECANCELLED);
  tm_channel_close(ch);
  echo_stop(&e);
}

/* --- adopted connections, heartbeats, back-pressure --- */

static void a_control_connection_lives_by_heartbeats_and_ends_in_silence(void **state) {
  (void)state;
  echo e, mine = {0};
  tm_channel *ch, *dumb;
  tm_netloop *l;
  tm_conn *c;
  tm_err err = {0};
  echo_start(&e, 1);
  assert_ok(tm_netloop_new(1, &l));
  tm_channel_options o = client(&e);
  strcpy(o.self.purpose, "control");
  assert_ok_err(tm_channel_open(&o, &ch, &err), &err);
  assert_ok_err(tm_channel_open(&o, &dumb, &err), &err); /* sends no heartbeat */
  tm_conn_limits lim = {1 << 20, 50000000, 300000000};
  tm_conn_events ev = {NULL, echo_message, echo_closed, &mine};
  assert_ok_err(tm_netloop_adopt(l, ch, &lim, &ev, &e, &c, &err), &err);
  assert_ptr_equal(tm_conn_user(c), &e);
  tm_sleep_ns(900000000);
  assert_int_equal(mine.closed, 0);
  assert_int_equal(e.closed, 1); /* the dumb one */
  tm_conn_close(c, TM_ECANCELLED, "enough");
  for (int i = 0; i < 400 && !mine.closed; i++) tm_sleep_ns(5000000);
  assert_int_equal(mine.closed, 1);
  tm_frame f = {.kind = 100};
  assert_int_equal(tm_conn_send(c, &f, NULL, NULL, 0, NULL, NULL), TM_EUNAVAILABLE);
  tm_conn_unref(c);
  tm_channel_close(dumb);
  tm_netloop_free(l);
  echo_stop(&e);
}

static void who_asks_and_does_not_read_is_not_served_without_end(void **state) {
  (void)state;
  enum { MANY = 300, BYTES = 256 << 10 };
  echo e;
  tm_channel *ch;
  tm_err err = {0};
  echo_start(&e, 1);
  tm_channel_options o = client(&e);
  o.silence_ns = 300000000;
  assert_ok_err(tm_channel_open(&o, &ch, &err), &err);
  uint8_t *data = calloc(1, BYTES);
  int64_t live = tm_mem_live();
  tm_status s = TM_OK;
  int sent = 0;
  for (; sent < MANY && s == TM_OK; sent++) {
    tm_frame f = {.kind = 100};
    tm_segment seg = {data, BYTES};
    s = tm_channel_send(ch, &f, NULL, &seg, 1, &err);
  }
  assert_int_equal(s, TM_EUNAVAILABLE); /* it stopped reading */
  assert_true(sent < MANY && tm_mem_live() - live < (16 << 20));
  tm_channel_close(ch);
  free(data);
  echo_stop(&e);
}

/* Nobody accepts: what is not taken must not be waited for. */
static void a_task_that_stands_still_holds_up_nobody_who_connects(void **state) {
  enum { MOST = 700 };
  (void)state;
  static int fd[MOST];
  char text[32];
  uint16_t port;
  int tcp, unix_fd, n = 0;
  tm_err err;
  tm_err_clear(&err);
  assert_ok_err(tm_addr_listen("127.0.0.1:0", &tcp, &unix_fd, &port, &err), &err);
  snprintf(text, sizeof text, "127.0.0.1:%d", port);
  int64_t start = tm_now_ns();
  tm_status s = TM_OK;
  while (n < MOST && (s = tm_addr_connect(text, true, 100000000, NULL, &fd[n], NULL,
                                          &err)) == TM_OK)
    n++;
  assert_int_equal(s, TM_EUNAVAILABLE);
  assert_true(n > 128);
  assert_true(tm_now_ns() - start < 30000000000);
  for (int i = 0; i < n; i++) close(fd[i]);
  close(tcp);
  close(unix_fd);
}

/* The kernel may give the very port that is asked for. */
static void a_port_where_nobody_listens_is_never_reached(void **state) {
  (void)state;
  char text[32];
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000001)};
  socklen_t n = sizeof a;
  assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
  close(fd);
  a.sin_port = htons((uint16_t)(ntohs(a.sin_port) & ~1u)); /* such are given first */
  snprintf(text, sizeof text, "127.0.0.1:%d", ntohs(a.sin_port));
  for (int i = 0; i < 20000; i++)
    assert_int_equal(tm_addr_connect(text, false, 1000000000, NULL, &fd, NULL, NULL),
                     TM_EUNAVAILABLE);
}

static void unused_ports_differ_and_are_not_those_of_connections(void **state) {
  (void)state;
  uint16_t before = 0;
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000001)};
  socklen_t n = sizeof a;
  assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
  for (int i = 0; i < 100; i++) {
    uint16_t port = tm_addr_unused_port();
    assert_int_not_equal(port, 0);
    assert_int_not_equal(port, before);
    assert_int_not_equal(port, ntohs(a.sin_port));
    before = port;
  }
  close(fd);
}

static void bytes_are_all_given_back(void **state) {
  (void)state;
  assert_int_equal(tm_mem_live(), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(frames_of_all_sizes_come_back),
      cmocka_unit_test(many_clients_are_served_at_once),
      cmocka_unit_test(another_cluster_and_strangers_are_refused_with_a_reason),
      cmocka_unit_test(a_port_in_use_is_told_with_its_address),
      cmocka_unit_test(malformed_bytes_only_end_their_connection),
      cmocka_unit_test(a_client_killed_in_the_middle_of_a_frame_leaves_nothing),
      cmocka_unit_test(a_server_that_goes_away_is_unavailable_by_name),
      cmocka_unit_test(silence_and_cancel_end_a_wait),
      cmocka_unit_test(a_control_connection_lives_by_heartbeats_and_ends_in_silence),
      cmocka_unit_test(who_asks_and_does_not_read_is_not_served_without_end),
      cmocka_unit_test(a_task_that_stands_still_holds_up_nobody_who_connects),
      cmocka_unit_test(a_port_where_nobody_listens_is_never_reached),
      cmocka_unit_test(unused_ports_differ_and_are_not_those_of_connections),
      cmocka_unit_test(bytes_are_all_given_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
