/* A lane and its copy: two ps in this process, a chief that is a channel. */
#include <pthread.h>
#include <stdlib.h>

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
  tm_channel *control;
  char address[64];
  uint64_t id; /* of the last order */
} server;

static void on_message(void *ud, tm_conn *c, tm_message *m) {
  if (!tm_ps_service_message(((server *)ud)->service, c, m))
    tm_conn_close(c, TM_EINVAL, "not for a ps");
}

static void on_closed(void *ud, tm_conn *c, const tm_err *why) {
  (void)why;
  tm_ps_service_closed(((server *)ud)->service, c);
}

static tm_channel *dial(const char *address, const char *purpose) {
  tm_channel *ch;
  tm_err err = {0};
  tm_channel_options o = {.address = address,
                          .self = {.cluster = "c", .task = "/job:chief/task:0"},
                          .silence_ns = 60000000000};
  snprintf(o.self.purpose, sizeof o.self.purpose, "%s", purpose);
  assert_ok_err(tm_channel_open(&o, &ch, &err), &err);
  return ch;
}

static void server_start(server *s, int index) {
  tm_err err = {0};
  uint16_t port;
  char task[48];
  snprintf(task, sizeof task, "/job:ps/task:%d", index);
  assert_ok(tm_ps_service_new(task, &s->service));
  assert_ok(tm_ps_service_reset(s->service, -1, 0));
  assert_ok(tm_netloop_new(2, &s->loop));
  tm_listen_options o = {.address = "127.0.0.1:0",
                         .self = {.cluster = "c", .incarnation = 1},
                         .data = {1ull << 32, 0, 60000000000},
                         .control = {1ull << 32, 1000000000, 60000000000},
                         .events = {NULL, on_message, on_closed, s}};
  snprintf(o.self.task, sizeof o.self.task, "%s", task);
  assert_ok_err(tm_netloop_listen(s->loop, &o, &port, &err), &err);
  snprintf(s->address, sizeof s->address, "127.0.0.1:%u", (unsigned)port);
  s->control = dial(s->address, "control");
  s->id = 0;
}

static void server_stop(server *s) {
  tm_channel_close(s->control);
  tm_netloop_free(s->loop);
  tm_ps_service_free(s->service);
}

static void order_send(server *s, uint64_t epoch, bool fresh, const char *copy) {
  tm_buf b = TM_BUF_INIT(1024);
  tm_packer w;
  tm_err err = {0};
  tm_frame f = {.kind = TM_F_LANE, .id = ++s->id};
  tm_pack_init(&w, &b);
  tm_pack_array(&w, 4);
  tm_pack_int(&w, 0);
  tm_pack_uint(&w, epoch);
  tm_pack_bool(&w, fresh);
  tm_pack_cstr(&w, copy);
  assert_ok(w.status);
  assert_ok_err(tm_channel_send(s->control, &f, &b, NULL, 0, &err), &err);
  tm_buf_release(&b);
}

/* TM_OK, or what the ps says; a question about a lost copy is passed over. */
static tm_status order_answer(server *s) {
  tm_frame f;
  const uint8_t *meta;
  tm_err err = {0};
  do {
    assert_ok_err(tm_channel_head(s->control, &f, &meta, &err), &err);
    assert_ok_err(tm_channel_end(s->control, &err), &err);
  } while (f.kind == TM_F_REPLICA_LOST);
  assert_int_equal(f.id, s->id);
  if (f.kind == TM_F_OK) return TM_OK;
  tm_unpacker u;
  tm_unpack_init(&u, meta, f.meta_bytes);
  tm_err_unpack(&u, &err);
  return err.code;
}

static tm_status order(server *s, uint64_t epoch, bool fresh, const char *copy) {
  order_send(s, epoch, fresh, copy);
  return order_answer(s);
}

static tm_ps_client *client(const server *a, const server *b) {
  tm_ps_client *c;
  tm_err err = {0};
  tm_channel_options ch = {.address = a->address,
                           .self = {.cluster = "c", .task = "/job:worker/task:0"},
                           .silence_ns = 60000000000,
                           .spin_ns = -1};
  tm_ps_remote_options o = {.channel = ch, .lane = 0, .other.address = b->address};
  assert_ok_err(tm_ps_client_lane(&o, &c, &err), &err);
  return c;
}

/* Whoever waits for a ps tells "not yet" from an error of its own by the code. */
static void a_lane_that_nobody_serves_any_more_is_unavailable(void **state) {
  (void)state;
  server a, b;
  tm_ps_client *c;
  tm_err err = {0};
  tm_cancel gone = {0};
  server_start(&a, 0);
  server_start(&b, 1);
  tm_cancel_set(&gone);
  tm_channel_options ch = {.address = a.address,
                           .self = {.cluster = "c", .task = "/job:chief/task:0"},
                           .silence_ns = 60000000000};
  tm_ps_remote_options o = {
      .channel = ch, .lane = 0, .other.address = b.address, .gone = &gone};
  assert_int_equal(tm_ps_client_lane(&o, &c, &err), TM_EUNAVAILABLE);
  assert_int_equal(err.code, TM_EUNAVAILABLE);
  server_stop(&a);
  server_stop(&b);
}

/* --- what is in it --- */

enum { ROWS = 64, WIDTH = 5, VARS = 12 };

static const tm_shape table = {2, {ROWS, WIDTH}};

static void create(tm_ps_client *c, uint64_t uid) {
  tm_err err = {0};
  tm_shard_spec sp = {.uid = uid,
                      .dtype = TM_F32,
                      .shape = table,
                      .full_shape = table,
                      .user = true,
                      .init = {.kind = "normal", .b = 1, .seed = uid}};
  assert_ok_err(c->create(c, &sp, 1, &err), &err);
}

/* Adam on all of it, adagrad on some rows of another one. */
static void step(tm_ps_client *c, uint64_t closure) {
  tm_err err = {0};
  float g[ROWS * WIDTH], some[7 * WIDTH];
  int64_t ids[7];
  tm_shape rows = {2, {7, WIDTH}}, n = {1, {7}};
  for (int i = 0; i < ROWS * WIDTH; i++) g[i] = (float)((i + (int)closure) % 13) - 6;
  memcpy(some, g, sizeof some);
  for (int i = 0; i < 7; i++)
    ids[i] = (int64_t)((closure * 5 + (uint64_t)i * 9) % ROWS);
  tm_ps_update up[2] = {{.kind = TM_PS_APPLY,
                         .uid = 1 + closure % (VARS / 2),
                         .rule = "adam",
                         .optimizer = 3,
                         .nhyper = 4,
                         .hyper = {0.1, 0.9, 0.99, 1e-7},
                         .t = (int64_t)closure,
                         .value = {TM_F32, table, g}},
                        {.kind = TM_PS_APPLY_ROWS,
                         .uid = 1 + VARS / 2 + closure % (VARS / 2),
                         .rule = "adagrad",
                         .optimizer = 4,
                         .nhyper = 3,
                         .hyper = {0.1, 1e-7, 0.1},
                         .t = (int64_t)closure,
                         .value = {TM_F32, rows, some},
                         .ids = {TM_I64, n, ids}}};
  tm_ps_request rq = {
      .token = {.incarnation = 9, .closure = closure, .turn = 1, .lowest = closure},
      .nup = 2,
      .up = up};
  assert_ok_err(c->begin(c, &rq, &err), &err);
  assert_ok_err(c->wait(c, &rq, &err), &err);
  if (rq.up_status) fail_msg("%s", rq.err.msg);
}

/* A hash of every variable and slot. */
static uint64_t hash(tm_ps_client *c) {
  tm_err err = {0};
  uint64_t h = 0;
  for (uint64_t uid = 1; uid <= VARS; uid++) {
    bool adam = uid <= VARS / 2;
    tm_ps_read rd[3] = {{.kind = TM_PS_DENSE, .uid = uid},
                        {.kind = TM_PS_SLOT,
                         .uid = uid,
                         .optimizer = adam ? 3 : 4,
                         .slot = adam ? "m" : "accumulator"},
                        {.kind = TM_PS_SLOT, .uid = uid, .optimizer = 3, .slot = "v"}};
    tm_ps_request rq = {.nrd = adam ? 3 : 2, .rd = rd};
    assert_ok_err(c->begin(c, &rq, &err), &err);
    assert_ok_err(c->wait(c, &rq, &err), &err);
    if (rq.rd_status) fail_msg("%s", rq.err.msg);
    for (int i = 0; i < rq.nrd; i++) {
      h = h * 31 + tm_hash64(rd[i].out->v.data, tm_view_bytes(&rd[i].out->v), 0);
      tm_tensor_unref(rd[i].out);
    }
  }
  return h;
}

/* --- tests --- */

typedef struct trainer {
  tm_ps_client *c;
  atomic_bool stop;
  uint64_t closure;
} trainer;

static void *train(void *ud) {
  trainer *t = ud;
  while (!atomic_load(&t->stop)) step(t->c, ++t->closure);
  return NULL;
}

static void a_copy_made_while_updates_go_on_has_every_bit(void **state) {
  (void)state;
  for (int round = 0; round < 8; round++) {
    server a, b;
    trainer t = {.closure = 20};
    pthread_t id;
    server_start(&a, 0);
    server_start(&b, 1);
    assert_ok(order(&a, 1, true, NULL));
    t.c = client(&a, &b);
    for (uint64_t uid = 1; uid <= VARS; uid++) create(t.c, uid);
    for (uint64_t i = 1; i <= 20; i++) step(t.c, i);
    pthread_create(&id, NULL, train, &t);
    tm_sleep_ns(2000000);
    assert_ok(order(&a, 2, false, b.address));
    tm_sleep_ns(2000000);
    atomic_store(&t.stop, true);
    pthread_join(id, NULL);
    uint64_t want = hash(t.c);
    assert_ok(order(&b, 3, false, NULL)); /* b is the primary now */
    step(t.c, t.closure);                 /* a is told by the copy that it is none */
    assert_true(hash(t.c) == want);       /* and b knew the token */
    step(t.c, ++t.closure);
    assert_true(hash(t.c) != want);
    t.c->close(t.c);
    server_stop(&a);
    server_stop(&b);
  }
}

static void a_primary_without_its_copy_answers_when_the_chief_says_so(void **state) {
  (void)state;
  server a, b;
  trainer t = {.closure = 0};
  pthread_t id;
  server_start(&a, 0);
  server_start(&b, 1);
  assert_ok(order(&a, 1, true, b.address));
  t.c = client(&a, &b);
  for (uint64_t uid = 1; uid <= VARS; uid++) create(t.c, uid);
  pthread_create(&id, NULL, train, &t);
  tm_sleep_ns(10000000);
  server_stop(&b);
  tm_frame f;
  const uint8_t *meta;
  tm_err err = {0};
  assert_ok_err(tm_channel_head(a.control, &f, &meta, &err), &err);
  assert_int_equal(f.kind, TM_F_REPLICA_LOST);
  atomic_store(&t.stop, true);
  tm_sleep_ns(20000000); /* what is asked now is not answered */
  assert_ok(order(&a, 2, false, NULL));
  pthread_join(id, NULL);
  step(t.c, ++t.closure);
  t.c->close(t.c);
  server_stop(&a);
}

static void orders_of_an_earlier_epoch_are_refused(void **state) {
  (void)state;
  server a, b;
  server_start(&a, 0);
  server_start(&b, 1);
  assert_int_equal(order(&a, 1, false, NULL), TM_ENOTFOUND);
  assert_ok(order(&a, 5, true, b.address));
  assert_int_equal(order(&a, 4, false, NULL), TM_EABORTED);
  assert_int_equal(order(&a, 5, true, NULL), TM_EABORTED);
  assert_ok(order(&b, 6, false, NULL));
  assert_int_equal(order(&a, 5, false, b.address), TM_EABORTED); /* b is later */
  assert_ok(order(&b, 7, false, a.address));
  assert_int_equal(order(&a, 6, false, NULL), TM_EABORTED);
  assert_ok(order(&a, 8, false, NULL)); /* a is whole again */
  server_stop(&a);
  server_stop(&b);
}

static void a_copy_that_is_not_whole_is_no_primary(void **state) {
  (void)state;
  server b;
  tm_err err = {0};
  tm_buf m = TM_BUF_INIT(64);
  tm_packer w;
  const uint8_t *meta;
  server_start(&b, 1);
  tm_channel *ch = dial(b.address, "data");
  tm_frame f = {.kind = TM_F_REPLICA, .id = 1};
  tm_pack_init(&w, &m);
  tm_pack_array(&w, 3);
  tm_pack_int(&w, 0);
  tm_pack_uint(&w, 77);
  tm_pack_uint(&w, 1);
  assert_ok_err(tm_channel_send(ch, &f, &m, NULL, 0, &err), &err);
  assert_ok_err(tm_channel_head(ch, &f, &meta, &err), &err);
  assert_int_equal(f.kind, TM_F_OK);
  assert_int_equal(order(&b, 2, false, NULL), TM_EPRECOND);
  /* Whatever comes there, changed and cut at every place, is answered. */
  tm_buf_clear(&m);
  tm_pack_init(&w, &m);
  tm_segments seg = {NULL, 0, 0};
  float x[ROWS * WIDTH] = {0};
  tm_shard_spec sp = {.uid = 1,
                      .dtype = TM_F32,
                      .shape = table,
                      .full_shape = table,
                      .init = {.kind = "zeros"}};
  tm_pack_array(&w, 2);
  assert_ok(tm_ps_specs_pack(&sp, 1, &w, &seg));
  tm_pack_array(&w, 2);
  tm_pack_uint(&w, 3);
  tm_pack_int(&w, 6);
  assert_ok(tm_segments_push(&seg, x, sizeof x));
  assert_ok(tm_segments_push(&seg, x, sizeof x));
  tm_buf bad = TM_BUF_INIT(4096);
  for (size_t i = 0; i <= m.len * 3; i++) {
    size_t at = i / 3;
    f = (tm_frame){.kind = TM_F_REPLICA_SHARD, .id = 2 + i};
    tm_buf_clear(&bad);
    assert_ok(tm_buf_put(&bad, m.data, i % 3 || at == m.len ? m.len : at));
    if (i % 3 == 1) bad.data[at] ^= 0xff;
    if (i % 3 == 2) bad.data[at] = (uint8_t)(bad.data[at] + 1);
    assert_ok_err(tm_channel_send(ch, &f, &bad, seg.s, i % 5 ? seg.n : 1, &err), &err);
    assert_ok_err(tm_channel_head(ch, &f, &meta, &err), &err);
    assert_int_equal(f.id, 2 + i);
    assert_true(f.kind == TM_F_ERROR || f.kind == TM_F_OK);
    assert_ok_err(tm_channel_end(ch, &err), &err);
  }
  tm_buf_release(&bad);
  tm_buf_release(&m);
  tm_segments_release(&seg);
  tm_channel_close(ch);
  server_stop(&b);
}

static void bytes_are_all_given_back(void **state) {
  (void)state;
  assert_int_equal(tm_mem_live(), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_lane_that_nobody_serves_any_more_is_unavailable),
      cmocka_unit_test(a_copy_made_while_updates_go_on_has_every_bit),
      cmocka_unit_test(a_primary_without_its_copy_answers_when_the_chief_says_so),
      cmocka_unit_test(orders_of_an_earlier_epoch_are_refused),
      cmocka_unit_test(a_copy_that_is_not_whole_is_no_primary),
      cmocka_unit_test(bytes_are_all_given_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
