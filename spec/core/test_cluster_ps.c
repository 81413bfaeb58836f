/* A ps over sockets: the same answers as in process, and what happens when it dies. */
#include <signal.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/map.h"
#include "cluster/ps_remote.h"
#include "cluster/ps_service.h"
#include "cluster/ps_wire.h"
#include "net/loop.h"
#include "test.h"

typedef struct server {
  tm_ps_service *service;
  tm_netloop *loop;
  char address[64];
} server;

static void on_message(void *ud, tm_conn *c, tm_message *m) {
  if (!tm_ps_service_message(((server *)ud)->service, c, m))
    tm_conn_close(c, TM_EINVAL, "not for a ps");
}

static void server_start(server *s) {
  tm_err err = {0};
  uint16_t port;
  assert_ok(tm_ps_service_new("/job:ps/task:0", &s->service));
  assert_ok(tm_netloop_new(2, &s->loop));
  tm_listen_options o = {.address = "127.0.0.1:0",
                         .self = {"c", "/job:ps/task:0", "", 1},
                         .data = {1ull << 32, 0, 60000000000},
                         .events = {NULL, on_message, NULL, s}};
  assert_ok_err(tm_netloop_listen(s->loop, &o, &port, &err), &err);
  snprintf(s->address, sizeof s->address, "127.0.0.1:%u", (unsigned)port);
}

static void server_stop(server *s) {
  tm_netloop_free(s->loop);
  tm_ps_service_free(s->service);
}

static tm_ps_client *dial(const char *address, bool tcp) {
  tm_ps_client *c;
  tm_err err = {0};
  tm_channel_options o = {.address = address,
                          .self = {"c", "/job:worker/task:0", "", 2},
                          .silence_ns = 60000000000,
                          .spin_ns = -1,
                          .no_unix = tcp};
  assert_ok_err(tm_ps_client_remote(&o, &c, &err), &err);
  return c;
}

static tm_shape vec(int64_t n) { return tm_shape_of(1, &n); }
static tm_shape mat(int64_t n, int64_t m) {
  return tm_shape_of(2, (const int64_t[]){n, m});
}

/* A dense step, a step by rows, reads of all kinds; a hash of everything read. */
static uint64_t train(tm_ps_client *c, int64_t rows, int64_t width) {
  tm_err err = {0};
  uint64_t hash = 0;
  int64_t n = 7;
  tm_shard_spec sp[2] = {{.uid = 1,
                          .dtype = TM_F32,
                          .shape = mat(rows, width),
                          .full_shape = mat(rows, width),
                          .user = true,
                          .init = {"normal", 0, 1, 5, NULL}},
                         {.uid = 2,
                          .dtype = TM_F32,
                          .shape = vec(width),
                          .full_shape = vec(width),
                          .init = {"value", 0, 0, 0, NULL}}};
  tm_shape w = vec(width);
  assert_ok(tm_tensor_new(TM_F32, &w, &sp[1].init.value, &err));
  for (int64_t i = 0; i < width; i++) ((float *)sp[1].init.value->v.data)[i] = (float)i;
  assert_ok_err(c->create(c, sp, 2, &err), &err);
  tm_tensor_unref(sp[1].init.value);
  float *g = malloc((size_t)(n * width) * 4), *got = malloc((size_t)(n * width) * 4);
  void *at[7];
  for (int64_t i = 0; i < n * width; i++) g[i] = (float)(i % 13) - 6;
  for (int step = 1; step <= 3; step++) {
    int64_t ids[7];
    for (int64_t i = 0; i < n; i++) ids[i] = (i * 31 + step) % rows;
    for (int64_t i = 0; i < n; i++) at[i] = got + ((i * 3) % n) * width;
    tm_ps_update up[2] = {{.kind = TM_PS_APPLY,
                           .uid = 2,
                           .rule = "adam",
                           .optimizer = 3,
                           .nhyper = 4,
                           .hyper = {0.1, 0.9, 0.99, 1e-7},
                           .t = step,
                           .value = {TM_F32, vec(width), g}},
                          {.kind = TM_PS_APPLY_ROWS,
                           .uid = 1,
                           .rule = "adagrad",
                           .optimizer = 3,
                           .nhyper = 3,
                           .hyper = {0.1, 1e-7, 0.1},
                           .t = step,
                           .value = {TM_F32, mat(n, width), g},
                           .ids = {TM_I64, vec(n), ids}}};
    float copy[4096];
    tm_ps_read rd[4] = {
        {.kind = TM_PS_DENSE, .uid = 2, .dst = {TM_F32, vec(width), NULL}},
        {.kind = TM_PS_ROWS,
         .uid = 1,
         .ids = {TM_I64, vec(n), ids},
         .dst = {TM_F32, mat(n, width), got},
         .rows_at = at},
        {.kind = TM_PS_SLOT, .uid = 2, .optimizer = 3, .slot = "v"},
        {.kind = TM_PS_DENSE,
         .uid = 2,
         .dst = {TM_F32, vec(width), width <= 4096 ? copy : NULL}}};
    tm_ps_request rq = {.token = {.incarnation = 9,
                                  .closure = (uint64_t)step,
                                  .turn = 1,
                                  .lowest = (uint64_t)step},
                        .nup = 2,
                        .up = up,
                        .nrd = 4,
                        .rd = rd};
    assert_ok_err(c->begin(c, &rq, &err), &err);
    assert_ok_err(c->wait(c, &rq, &err), &err);
    if (rq.up_status || rq.rd_status) fail_msg("%s", rq.err.msg);
    hash = hash * 31 + tm_hash64(got, (size_t)(n * width) * 4, 0);
    for (int i = 0; i < 4; i += 1) {
      if (!rd[i].out) continue;
      hash = hash * 31 + tm_hash64(rd[i].out->v.data, tm_view_bytes(&rd[i].out->v), 0);
      if (i == 0 && rd[3].dst.data)
        assert_memory_equal(copy, rd[0].out->v.data, (size_t)width * 4);
      tm_tensor_unref(rd[i].out);
    }
  }
  free(g);
  free(got);
  return hash;
}

static void a_ps_over_sockets_gives_the_same_bits_as_in_process(void **state) {
  (void)state;
  const int64_t widths[] = {1, 3, 16, 1000, 100003};
  for (size_t i = 0; i < TM_COUNT(widths); i++) {
    tm_store *store;
    tm_ps_client *c;
    assert_ok(tm_store_new("/job:ps/task:0", &store));
    assert_ok(tm_ps_client_local(store, &c));
    uint64_t want = train(c, 50, widths[i]);
    c->close(c);
    tm_store_free(store);
    for (int tcp = 0; tcp < 2; tcp++) {
      server s;
      tm_err err = {0};
      tm_store_stats st;
      server_start(&s);
      c = dial(s.address, tcp);
      assert_string_equal(c->task, "/job:ps/task:0");
      assert_true(train(c, 50, widths[i]) == want);
      assert_ok_err(c->stats(c, &st, &err), &err);
      assert_int_equal(st.reads, 3);
      assert_int_equal(st.updates, 3);
      assert_int_equal(st.variables, 1);
      assert_int_equal(st.slots, 3);
      c->close(c);
      server_stop(&s);
    }
  }
}

static void errors_of_the_ps_come_with_its_name(void **state) {
  (void)state;
  server s;
  tm_err err = {0};
  server_start(&s);
  tm_ps_client *c = dial(s.address, false);
  int64_t ids[1] = {8};
  float row[2];
  tm_shard_spec sp = {.uid = 5,
                      .dtype = TM_F32,
                      .shape = mat(8, 2),
                      .full_shape = mat(8, 2),
                      .init = {.kind = "zeros"}};
  assert_ok_err(c->create(c, &sp, 1, &err), &err);
  tm_ps_read rd = {.kind = TM_PS_ROWS,
                   .uid = 5,
                   .ids = {TM_I64, vec(1), ids},
                   .dst = {TM_F32, mat(1, 2), row}};
  tm_ps_request rq = {.nrd = 1, .rd = &rd};
  assert_ok_err(c->begin(c, &rq, &err), &err);
  assert_ok_err(c->wait(c, &rq, &err), &err);
  assert_int_equal(rq.rd_status, TM_EINVAL);
  assert_non_null(strstr(rq.err.msg, "no row 8"));
  assert_string_equal(rq.err.task, "/job:ps/task:0");
  sp.shape = sp.full_shape = mat(9, 2);
  assert_int_equal(c->create(c, &sp, 1, &err), TM_EEXISTS);
  assert_string_equal(err.task, "/job:ps/task:0");
  assert_ok_err(c->drop(c, 5, 0, &err), &err);
  assert_ok_err(c->create(c, &sp, 1, &err), &err);
  assert_ok_err(c->refuse(c, 77, &err), &err);
  float ones[18] = {1};
  tm_ps_update up = {.kind = TM_PS_ADD, .uid = 5, .value = {TM_F32, mat(9, 2), ones}};
  rq = (tm_ps_request){
      .token = {.incarnation = 77, .closure = 1, .turn = 1, .lowest = 1},
      .nup = 1,
      .up = &up};
  assert_ok_err(c->begin(c, &rq, &err), &err);
  assert_ok_err(c->wait(c, &rq, &err), &err);
  assert_int_equal(rq.up_status, TM_EABORTED);
  assert_ok(tm_ps_service_reset(s.service, 0, 0));
  tm_ps_read all = {.kind = TM_PS_DENSE, .uid = 5, .dst = {TM_F32, mat(9, 2), NULL}};
  rq = (tm_ps_request){.nrd = 1, .rd = &all};
  assert_ok_err(c->begin(c, &rq, &err), &err);
  assert_ok_err(c->wait(c, &rq, &err), &err);
  assert_int_equal(rq.rd_status, TM_ENOTFOUND);
  c->close(c);
  server_stop(&s);
}

/* --- a process of its own --- */

static pid_t server_fork(char *address, size_t cap) {
  int pipe_fd[2];
  assert_int_equal(pipe(pipe_fd), 0);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    server s;
    server_start(&s);
    if (write(pipe_fd[1], s.address, sizeof s.address) < 0) _exit(1);
    for (;;) pause();
  }
  char text[64];
  assert_int_equal(read(pipe_fd[0], text, sizeof text), sizeof text);
  snprintf(address, cap, "%s", text);
  close(pipe_fd[0]);
  close(pipe_fd[1]);
  return pid;
}

static void end(pid_t pid) {
  int status;
  kill(pid, SIGKILL);
  assert_int_equal(waitpid(pid, &status, 0), pid);
}

static void a_ps_killed_while_asked_is_unavailable_at_once(void **state) {
  (void)state;
  char address[64];
  tm_err err = {0};
  pid_t pid = server_fork(address, sizeof address);
  tm_ps_client *c = dial(address, false);
  train(c, 50, 1000);
  enum { BIG = 4 << 20 };
  tm_shard_spec sp = {.uid = 9,
                      .dtype = TM_F32,
                      .shape = vec(BIG),
                      .full_shape = vec(BIG),
                      .init = {.kind = "zeros"}};
  assert_ok_err(c->create(c, &sp, 1, &err), &err);
  kill(pid, SIGSTOP); /* it will die with the request half read */
  float *x = calloc(BIG, sizeof *x);
  tm_ps_update up = {.kind = TM_PS_ADD, .uid = 9, .value = {TM_F32, vec(BIG), x}};
  tm_ps_request rq = {.nup = 1, .up = &up};
  pid_t killer = fork();
  if (killer == 0) {
    tm_sleep_ns(100000000);
    kill(pid, SIGKILL);
    _exit(0);
  }
  int64_t start = tm_now_ns();
  tm_status s = c->begin(c, &rq, &err);
  if (s == TM_OK) s = c->wait(c, &rq, &err);
  assert_int_equal(s, TM_EUNAVAILABLE);
  assert_true(tm_now_ns() - start < 30000000000);
  assert_string_equal(err.task, "/job:ps/task:0");
  assert_int_equal(c->begin(c, &rq, &err), TM_EUNAVAILABLE); /* and stays so */
  int status;
  assert_int_equal(waitpid(killer, &status, 0), killer);
  end(pid);
  c->close(c);
  free(x);
}

static void a_malformed_request_is_answered_with_an_error(void **state) {
  (void)state;
  server s;
  tm_err err = {0};
  tm_channel *ch;
  server_start(&s);
  tm_channel_options o = {.address = s.address,
                          .self = {"c", "/job:worker/task:0", "data", 2},
                          .silence_ns = 60000000000};
  assert_ok_err(tm_channel_open(&o, &ch, &err), &err);
  /* A good request, cut and changed at every place. */
  tm_buf good = TM_BUF_INIT(4096), bad = TM_BUF_INIT(4096);
  tm_segments seg = {NULL, 0, 0};
  tm_packer w;
  int64_t ids[2] = {1, 2};
  float rows[4] = {0};
  tm_ps_update up = {.kind = TM_PS_APPLY_ROWS,
                     .uid = 1,
                     .rule = "adam",
                     .nhyper = 4,
                     .t = 1,
                     .value = {TM_F32, mat(2, 2), rows},
                     .ids = {TM_I64, vec(2), ids}};
  tm_ps_read rd = {.kind = TM_PS_ROWS,
                   .uid = 1,
                   .ids = {TM_I64, vec(2), ids},
                   .dst = {TM_F32, mat(2, 2), NULL}};
  tm_ps_request rq = {.nup = 1, .up = &up, .nrd = 1, .rd = &rd};
  tm_pack_init(&w, &good);
  assert_ok(tm_ps_request_pack(&rq, &w, &seg));
  for (size_t i = 0; i < good.len * 3; i++) {
    const uint8_t *meta;
    tm_frame f = {.kind = TM_F_PS_REQUEST, .id = i};
    tm_buf_clear(&bad);
    size_t at = i / 3;
    assert_ok(tm_buf_put(&bad, good.data, i % 3 ? good.len : at));
    if (i % 3 == 1) bad.data[at] ^= 0xff;
    if (i % 3 == 2) bad.data[at] = (uint8_t)(bad.data[at] + 1);
    assert_ok_err(tm_channel_send(ch, &f, &bad, seg.s, seg.n, &err), &err);
    assert_ok_err(tm_channel_head(ch, &f, &meta, &err), &err);
    assert_int_equal(f.id, i);
    assert_true(f.kind == TM_F_ERROR || f.kind == TM_F_PS_REPLY);
    assert_ok_err(tm_channel_end(ch, &err), &err);
  }
  tm_buf_release(&good);
  tm_buf_release(&bad);
  tm_segments_release(&seg);
  tm_channel_close(ch);
  server_stop(&s);
}

static tm_status pack_and_unpack(void *ud) {
  (void)ud;
  tm_buf b = TM_BUF_INIT(1 << 20);
  tm_segments seg = {NULL, 0, 0};
  tm_arena a = TM_ARENA_INIT;
  tm_packer w;
  int64_t ids[8] = {1, 2};
  float rows[64] = {0};
  tm_ps_update up[20];
  for (int i = 0; i < 20; i++)
    up[i] =
        (tm_ps_update){.kind = TM_PS_ADD, .uid = 1, .value = {TM_F32, vec(64), rows}};
  tm_ps_read rd[2] = {{.kind = TM_PS_ROWS,
                       .uid = 1,
                       .ids = {TM_I64, vec(8), ids},
                       .dst = {TM_F32, mat(8, 2), NULL}},
                      {.kind = TM_PS_SLOT, .uid = 2, .slot = "momentum"}};
  tm_ps_request rq = {.nup = 20, .up = up, .nrd = 2, .rd = rd}, back;
  uint64_t bytes;
  tm_pack_init(&w, &b);
  tm_status s = tm_ps_request_pack(&rq, &w, &seg);
  static _Alignas(64) uint8_t payload[20 * 256 + 64];
  if (s == TM_OK)
    s = tm_ps_request_unpack(b.data, b.len, payload, sizeof payload, &a, &back, &bytes,
                             NULL);
  if (s == TM_OK &&
      (back.nup != 20 || bytes != 64 || strcmp(back.rd[1].slot, "momentum")))
    s = TM_EINTERNAL;
  tm_arena_release(&a);
  tm_segments_release(&seg);
  tm_buf_release(&b);
  return s;
}

static void every_allocation_of_the_wire_may_fail(void **state) {
  (void)state;
  assert_true(test_torture(pack_and_unpack, NULL) > 3);
}

static void bytes_are_all_given_back(void **state) {
  (void)state;
  assert_int_equal(tm_mem_live(), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_ps_over_sockets_gives_the_same_bits_as_in_process),
      cmocka_unit_test(errors_of_the_ps_come_with_its_name),
      cmocka_unit_test(a_ps_killed_while_asked_is_unavailable_at_once),
      cmocka_unit_test(a_malformed_request_is_answered_with_an_error),
      cmocka_unit_test(every_allocation_of_the_wire_may_fail),
      cmocka_unit_test(bytes_are_all_given_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
