/* A ps writes its part of a checkpoint, or gives it out in pieces; what it makes of
 * chiefs that go, ask for nonsense, or come two at a time. */
#include <pthread.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "ckpt/file.h"
#include "ckpt/safetensors.h"
#include "cluster/ps_remote.h"
#include "cluster/ps_service.h"
#include "cluster/save_lane.h"
#include "cluster/save_wire.h"
#include "net/loop.h"
#include "test.h"

enum { ROWS = 1000, WIDTH = 3 };

static char dir[200];

typedef struct server {
  tm_ps_service *service;
  tm_netloop *loop;
  char address[64];
} server;

static void on_message(void *ud, tm_conn *c, tm_message *m) {
  if (!tm_ps_service_message(((server *)ud)->service, c, m))
    tm_conn_close(c, TM_EINVAL, "not for a ps");
}

static void on_closed(void *ud, tm_conn *c, const tm_err *why) {
  (void)why;
  tm_ps_service_closed(((server *)ud)->service, c);
}

static void server_start(server *s) {
  tm_err err = {0};
  uint16_t port;
  assert_ok(tm_ps_service_new("/job:ps/task:0", &s->service));
  assert_ok(tm_netloop_new(2, &s->loop));
  tm_listen_options o = {.address = "127.0.0.1:0",
                         .self = {"c", "/job:ps/task:0", "", 1},
                         .data = {1ull << 32, 0, 60000000000},
                         .events = {NULL, on_message, on_closed, s}};
  assert_ok_err(tm_netloop_listen(s->loop, &o, &port, &err), &err);
  snprintf(s->address, sizeof s->address, "127.0.0.1:%u", (unsigned)port);
}

static void server_stop(server *s) {
  tm_ps_service_stop(s->service);
  tm_netloop_free(s->loop);
  tm_ps_service_free(s->service);
}

static tm_channel_options options(const server *s) {
  return (tm_channel_options){.address = s->address,
                              .self = {"c", "/job:chief/task:0", "", 2},
                              .silence_ns = 60000000000,
                              .spin_ns = -1};
}

static tm_ps_client *dial(const server *s) {
  tm_ps_client *c;
  tm_err err = {0};
  tm_channel_options o = options(s);
  assert_ok_err(tm_ps_client_remote(&o, &c, &err), &err);
  return c;
}

static tm_save_lane *lane(const server *s) {
  tm_save_lane *l;
  tm_err err = {0};
  tm_ps_remote_options o = {.channel = options(s), .lane = -1};
  assert_ok_err(tm_save_lane_remote(&o, &l, &err), &err);
  return l;
}

static void make(tm_ps_client *c, uint64_t uid, int64_t rows, int64_t width) {
  tm_err err = {0};
  tm_shard_spec sp = {.uid = uid,
                      .dtype = TM_F32,
                      .shape = {2, {rows, width}},
                      .full_shape = {2, {rows, width}},
                      .init = {"constant", 5, 0, 0, NULL}};
  assert_ok_err(c->create(c, &sp, 1, &err), &err);
}

/* Add 1 to a row: the shard is a table afterwards. */
static void bump(tm_ps_client *c, uint64_t uid, int64_t row, int64_t width) {
  tm_err err = {0};
  float *x = calloc((size_t)width, sizeof *x);
  for (int64_t i = 0; i < width; i++) x[i] = 1;
  tm_ps_update up = {.kind = TM_PS_SCATTER_ADD,
                     .uid = uid,
                     .value = {TM_F32, {2, {1, width}}, x},
                     .ids = {TM_I64, {1, {1}}, &row}};
  tm_ps_request rq = {.nup = 1, .up = &up};
  assert_ok_err(c->begin(c, &rq, &err), &err);
  assert_ok_err(c->wait(c, &rq, &err), &err);
  assert_ok_err(rq.up_status, &rq.err);
  free(x);
}

static int begin(void **state) {
  (void)state;
  test_dir(dir, sizeof dir);
  return 0;
}

static int end(void **state) {
  (void)state;
  test_rmdir(dir);
  return 0;
}

static const tm_snapshot_item items[] = {
    {.uid = 1}, {.uid = 1, .optimizer = 7, .slot = "m"}, {.uid = 2}};
static const char *const names[] = {"one", NULL, "two"};

static tm_status take(tm_save_lane *l, int64_t there[3], tm_err *err) {
  tm_err_clear(err);
  TM_TRY(l->take(l, items, 3, NULL, err));
  return l->taken(l, there, err);
}

/* Until a chief that went is noticed. */
static void take_soon(tm_save_lane **l, const server *s) {
  int64_t there[3];
  tm_err err = {0};
  int64_t until = tm_now_ns() + 10000000000;
  while (take(*l, there, &err)) {
    assert_int_equal(err.code, TM_EEXISTS);
    assert_true(tm_now_ns() < until);
    (*l)->close(*l);
    tm_sleep_ns(5000000);
    *l = lane(s);
  }
}

static bool exists(const char *name) {
  char path[TM_PATH_MAX];
  struct stat st;
  assert_ok(tm_path_join(path, dir, name, NULL));
  return stat(path, &st) == 0;
}

static void a_ps_writes_what_it_held_at_the_moment(void **state) {
  (void)state;
  server s;
  tm_err err = {0};
  int64_t there[3];
  char token[TM_SNAPSHOT_TOKEN], path[TM_PATH_MAX];
  float x[ROWS * WIDTH];
  server_start(&s);
  tm_ps_client *c = dial(&s);
  make(c, 1, ROWS, WIDTH);
  make(c, 2, 7, 1);
  bump(c, 1, 3, WIDTH);
  tm_save_lane *l = lane(&s);
  assert_string_equal(l->task, "/job:ps/task:0");
  assert_ok_err(take(l, there, &err), &err);
  assert_true(there[0] == TM_SAVE_WHOLE && there[1] == TM_SAVE_ABSENT &&
              there[2] == TM_SAVE_WHOLE);
  for (int64_t row = 0; row < ROWS; row += 2) bump(c, 1, row, WIDTH);
  bump(c, 2, 0, 1);
  assert_ok_err(tm_snapshot_probe(dir, token, &err), &err);
  tm_snapshot_job job = {
      .dir = dir, .file = "data-1", .token = token, .name = names, .n = 3};
  assert_ok_err(l->write(l, &job, &err), &err);
  bump(c, 1, 9, WIDTH); /* it serves meanwhile */
  assert_ok_err(l->written(l, &job, &err), &err);
  assert_false(job.unseen);
  l->close(l);
  assert_ok(tm_path_join(path, dir, "data-1", &err));
  tm_st_file *f;
  uint32_t crc;
  assert_ok_err(tm_st_open(path, &f, &err), &err);
  assert_int_equal(tm_st_size(f), job.size);
  assert_ok_err(tm_st_crc(f, &crc, &err), &err);
  assert_int_equal(crc, job.crc);
  assert_int_equal(tm_st_count(f), 2);
  assert_ok_err(tm_st_read(f, tm_st_find(f, "one"), 0, x, sizeof x, &err), &err);
  for (int i = 0; i < ROWS * WIDTH; i++) assert_true(x[i] == (i / WIDTH == 3 ? 6 : 5));
  assert_ok_err(tm_st_read(f, tm_st_find(f, "two"), 0, x, 7 * sizeof *x, &err), &err);
  for (int i = 0; i < 7; i++) assert_true(x[i] == 5);
  tm_st_close(f);
  tm_snapshot_unprobe(dir);
  c->close(c);
  server_stop(&s);
}

static void pieces_are_of_the_moment_too(void **state) {
  (void)state;
  server s;
  tm_err err = {0};
  int64_t there[3];
  float x[ROWS * WIDTH];
  server_start(&s);
  tm_ps_client *c = dial(&s);
  make(c, 1, ROWS, WIDTH);
  make(c, 2, 7, 1);
  bump(c, 1, 3, WIDTH);
  tm_save_lane *l = lane(&s);
  assert_ok_err(take(l, there, &err), &err);
  for (size_t at = 0; at < sizeof x;) {
    size_t n;
    for (int64_t row = 0; row < ROWS; row += 7) bump(c, 1, row, WIDTH);
    assert_ok_err(l->read(l, 0, at, (char *)x + at, 3001, &n, &err), &err);
    assert_true(n > 0 && n <= 3001);
    at += n;
  }
  for (int i = 0; i < ROWS * WIDTH; i++) assert_true(x[i] == (i / WIDTH == 3 ? 6 : 5));
  assert_ok_err(l->finish(l, &err), &err);
  l->close(l);
  c->close(c);
  server_stop(&s);
}

/* Changes all rows of a big table once, in UPDATEs of its own connection. */
enum { BIG_ROWS = 1 << 19, BIG_WIDTH = 64, BIG_STEP = 4096, BIG_WRITERS = 6 };

typedef struct big_writer {
  tm_ps_client *c;
  int first;
  atomic_int done;
  pthread_t id;
} big_writer;

static void *big_run(void *ud) {
  big_writer *w = ud;
  tm_err err = {0};
  float *x = calloc((size_t)BIG_STEP * BIG_WIDTH, sizeof *x), back[BIG_WIDTH];
  int64_t *ids = calloc(BIG_STEP, sizeof *ids);
  for (int i = 0; i < BIG_STEP * BIG_WIDTH; i++) x[i] = 1;
  for (int64_t at = w->first * BIG_STEP; at < BIG_ROWS; at += BIG_WRITERS * BIG_STEP) {
    for (int64_t i = 0; i < BIG_STEP; i++) ids[i] = BIG_ROWS - 1 - at - i;
    tm_ps_update up = {.kind = TM_PS_SCATTER_ADD,
                       .uid = 1,
                       .value = {TM_F32, {2, {BIG_STEP, BIG_WIDTH}}, x},
                       .ids = {TM_I64, {1, {BIG_STEP}}, ids}};
    tm_ps_read rd = {.kind = TM_PS_ROWS, /* what was just written */
                     .uid = 1,
                     .ids = {TM_I64, {1, {1}}, ids},
                     .dst = {TM_F32, {2, {1, BIG_WIDTH}}, back}};
    tm_ps_request rq = {.nup = 1, .up = &up, .nrd = 1, .rd = &rd};
    assert_ok_err(w->c->begin(w->c, &rq, &err), &err);
    assert_ok_err(w->c->wait(w->c, &rq, &err), &err);
    assert_ok_err(rq.up_status, &rq.err);
    assert_ok_err(rq.rd_status, &rq.err);
    assert_true(back[0] == 6);
    atomic_fetch_add(&w->done, 1);
  }
  free(x);
  free(ids);
  return NULL;
}

/* 128 MB against room for 64, more writers than the ps has loops, and a chief that is
 * slow: its reads are answered although everybody else waits. */
static void who_waits_for_room_does_not_keep_the_chief_from_making_some(void **state) {
  (void)state;
  server s;
  tm_err err = {0};
  int64_t there[1];
  const tm_snapshot_item item = {.uid = 1};
  const size_t bytes = (size_t)BIG_ROWS * BIG_WIDTH * sizeof(float);
  big_writer w[BIG_WRITERS];
  float *x = calloc(1, TM_SAVE_PIECE);
  server_start(&s);
  tm_ps_client *c = dial(&s);
  make(c, 1, BIG_ROWS, BIG_WIDTH);
  bump(c, 1, 0, BIG_WIDTH);
  tm_save_lane *l = lane(&s);
  assert_ok_err(l->take(l, &item, 1, NULL, &err), &err);
  assert_ok_err(l->taken(l, there, &err), &err);
  for (int i = 0; i < BIG_WRITERS; i++) {
    w[i] = (big_writer){.c = dial(&s), .first = i};
    assert_int_equal(pthread_create(&w[i].id, NULL, big_run, &w[i]), 0);
  }
  /* Until all of them wait. */
  for (int sum = -1, now = 0; sum != now;) {
    sum = now;
    tm_sleep_ns(100000000);
    now = 0;
    for (int i = 0; i < BIG_WRITERS; i++) now += atomic_load(&w[i].done);
  }
  for (size_t at = 0, n; at < bytes; at += n) {
    assert_ok_err(l->read(l, 0, at, x, TM_SAVE_PIECE, &n, &err), &err);
    for (size_t i = 0; i < n / sizeof *x; i++)
      assert_true(x[i] == (at / sizeof *x + i < BIG_WIDTH ? 6 : 5));
  }
  assert_ok_err(l->finish(l, &err), &err);
  for (int i = 0; i < BIG_WRITERS; i++) {
    pthread_join(w[i].id, NULL);
    w[i].c->close(w[i].c);
  }
  l->close(l);
  c->close(c);
  server_stop(&s);
  free(x);
}

/* Everybody waits, and the chief goes, or the ps ends: nobody waits any longer. */
static void who_waits_for_room_goes_on_without_the_chief(void **state) {
  (void)state;
  server s;
  tm_err err = {0};
  int64_t there[1];
  const tm_snapshot_item item = {.uid = 1};
  big_writer w[BIG_WRITERS];
  server_start(&s);
  tm_ps_client *c = dial(&s);
  make(c, 1, BIG_ROWS, BIG_WIDTH);
  bump(c, 1, 0, BIG_WIDTH);
  tm_save_lane *l = lane(&s);
  assert_ok_err(l->take(l, &item, 1, NULL, &err), &err);
  assert_ok_err(l->taken(l, there, &err), &err);
  for (int i = 0; i < BIG_WRITERS; i++) {
    w[i] = (big_writer){.c = dial(&s), .first = i};
    assert_int_equal(pthread_create(&w[i].id, NULL, big_run, &w[i]), 0);
  }
  tm_sleep_ns(300000000);
  l->close(l);
  for (int i = 0; i < BIG_WRITERS; i++) {
    pthread_join(w[i].id, NULL);
    w[i].c->close(w[i].c);
  }
  c->close(c);
  server_stop(&s);
}

static void who_does_not_see_the_probe_writes_nothing(void **state) {
  (void)state;
  server s;
  tm_err err = {0};
  int64_t there[3];
  server_start(&s);
  tm_ps_client *c = dial(&s);
  make(c, 1, ROWS, WIDTH);
  make(c, 2, 7, 1);
  for (int turn = 0; turn < 3; turn++) {
    tm_save_lane *l = lane(&s);
    take_soon(&l, &s);
    char token[TM_SNAPSHOT_TOKEN];
    assert_ok_err(tm_snapshot_probe(dir, token, &err), &err);
    tm_snapshot_job job = {.dir = turn == 1 ? "/nowhere" : dir,
                           .file = "data-2",
                           .token = turn == 0 ? "0123456789abcdef" : token,
                           .name = names,
                           .n = 3};
    if (turn == 2) tm_snapshot_unprobe(dir);
    assert_ok_err(l->write(l, &job, &err), &err);
    assert_ok_err(l->written(l, &job, &err), &err);
    assert_true(job.unseen);
    assert_false(exists("data-2"));
    size_t n; /* and the chief may still read */
    float x[7];
    assert_ok_err(l->read(l, 2, 0, x, sizeof x, &n, &err), &err);
    assert_true(n == sizeof x && x[6] == 5);
    l->close(l);
    (void)there;
  }
  c->close(c);
  server_stop(&s);
}

static void one_chief_at_a_time_and_a_chief_that_goes_gives_way(void **state) {
  (void)state;
  server s;
  tm_err err = {0};
  int64_t there[3];
  server_start(&s);
  tm_ps_client *c = dial(&s);
  make(c, 1, ROWS, WIDTH);
  make(c, 2, 7, 1);
  tm_save_lane *l = lane(&s), *other = lane(&s);
  assert_ok_err(take(l, there, &err), &err);
  assert_int_equal(take(other, there, &err), TM_EEXISTS);
  assert_string_equal(err.task, "/job:ps/task:0");
  other->close(other);
  l->close(l);
  l = lane(&s);
  take_soon(&l, &s);
  l->close(l);
  c->close(c);
  server_stop(&s);
}

static void a_chief_that_goes_in_the_middle_leaves_no_file(void **state) {
  (void)state;
  server s;
  tm_err err = {0};
  int64_t there[3];
  server_start(&s);
  tm_ps_client *c = dial(&s);
  make(c, 1, 200000, 64); /* 51 MB */
  make(c, 2, 7, 1);
  char token[TM_SNAPSHOT_TOKEN];
  assert_ok_err(tm_snapshot_probe(dir, token, &err), &err);
  tm_save_lane *l = lane(&s);
  assert_ok_err(take(l, there, &err), &err);
  tm_snapshot_job job = {
      .dir = dir, .file = "data-3", .token = token, .name = names, .n = 3};
  assert_ok_err(l->write(l, &job, &err), &err);
  for (int i = 0; i < 5000 && !exists("data-3"); i++) tm_sleep_ns(100000);
  l->close(l);
  l = lane(&s);
  take_soon(&l, &s);
  /* The first writer has stopped, or was done before it heard: then its file is whole
   * and the chief's to remove. */
  char path[TM_PATH_MAX];
  tm_st_file *f;
  assert_ok(tm_path_join(path, dir, "data-3", &err));
  for (int i = 0; i < 3000 && exists("data-3"); i++) {
    if (tm_st_open(path, &f, NULL) == TM_OK) {
      tm_st_close(f);
      break;
    }
    tm_sleep_ns(1000000);
  }
  if (exists("data-3")) assert_ok_err(tm_st_open(path, &f, &err), &err);
  if (exists("data-3")) tm_st_close(f);
  /* A new chief's start, and the end of the task, in the middle of another one. */
  job.file = "data-4";
  assert_ok_err(l->write(l, &job, &err), &err);
  assert_ok(tm_ps_service_reset(s.service, 0, 0));
  l->close(l);
  c->close(c);
  server_stop(&s);
  tm_snapshot_unprobe(dir);
}

static void nonsense_is_refused_and_the_ps_goes_on(void **state) {
  (void)state;
  server s;
  tm_err err = {0};
  int64_t there[3];
  size_t n;
  float x[8];
  server_start(&s);
  tm_ps_client *c = dial(&s);
  make(c, 1, ROWS, WIDTH);
  make(c, 2, 7, 1);
  tm_save_lane *l = lane(&s);
  /* Before there is a snapshot. */
  assert_int_equal(l->read(l, 0, 0, x, sizeof x, &n, &err), TM_EPRECOND);
  const tm_snapshot_item gone = {.uid = 99};
  assert_ok_err(l->take(l, &gone, 1, NULL, &err), &err);
  assert_int_equal(l->taken(l, there, &err), TM_ENOTFOUND);
  assert_ok_err(take(l, there, &err), &err);
  assert_int_equal(l->read(l, 17, 0, x, sizeof x, &n, &err), TM_EINVAL);
  assert_int_equal(l->read(l, 1, 0, x, sizeof x, &n, &err), TM_ERANGE);
  assert_int_equal(l->read(l, 2, 28, x, sizeof x, &n, &err), TM_ERANGE);
  assert_int_equal(l->read(l, 2, (uint64_t)1 << 62, x, sizeof x, &n, &err), TM_ERANGE);
  char token[TM_SNAPSHOT_TOKEN];
  assert_ok_err(tm_snapshot_probe(dir, token, &err), &err);
  static const char *const none[3] = {NULL, NULL, NULL};
  static const char *const twice[3] = {"a", NULL, "a"};
  const tm_snapshot_job bad[] = {{dir, "../x", token, names, .n = 3},
                                 {dir, "", token, names, .n = 3},
                                 {dir, "data-9", token, names, .n = 2},
                                 {dir, "data-9", token, none, .n = 3},
                                 {dir, "data-9", token, twice, .n = 3}};
  for (size_t i = 0; i < TM_COUNT(bad); i++) {
    tm_snapshot_job job = bad[i];
    assert_ok_err(l->write(l, &job, &err), &err);
    assert_int_equal(l->written(l, &job, &err), TM_EINVAL);
    assert_false(exists("data-9"));
  }
  tm_snapshot_job job = {
      .dir = dir, .file = "data-9", .token = token, .name = names, .n = 3};
  assert_ok_err(l->write(l, &job, &err), &err);
  assert_ok_err(l->written(l, &job, &err), &err);
  assert_true(exists("data-9"));
  l->close(l);
  tm_snapshot_unprobe(dir);
  c->close(c);
  server_stop(&s);
}

/* Bytes of each kind, cut off and changed: an error, and the connection goes on. */
static void malformed_metadata_are_answered(void **state) {
  (void)state;
  server s;
  tm_err err = {0};
  server_start(&s);
  tm_channel_options o = options(&s);
  snprintf(o.self.purpose, sizeof o.self.purpose, "data");
  tm_channel *ch;
  assert_ok_err(tm_channel_open(&o, &ch, &err), &err);
  const tm_frame_kind kinds[] = {TM_F_PS_SNAPSHOT, TM_F_PS_SAVE, TM_F_PS_SNAPSHOT_READ,
                                 TM_F_PS_RELEASE};
  uint64_t id = 1, seed = 1;
  for (int turn = 0; turn < 400; turn++) {
    tm_buf b = TM_BUF_INIT(4096);
    tm_packer w;
    tm_save_read rd = {1, 2, 3, 4};
    tm_snapshot_job job = {
        .dir = "d", .file = "f", .token = "t", .name = names, .n = 3};
    const uint8_t *meta;
    tm_pack_init(&w, &b);
    if (turn % 4 == 0) tm_save_items_pack(&w, items, 3, NULL);
    if (turn % 4 == 1) tm_save_job_pack(&w, 1, &job);
    if (turn % 4 == 2) tm_save_read_pack(&w, &rd);
    if (turn % 4 == 3) tm_pack_uint(&w, 70000);
    for (int k = 0; k < 3; k++) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      b.data[(seed >> 33) % b.len] = (uint8_t)(seed >> 20);
    }
    if (turn % 8 >= 4) b.len--;
    tm_frame f = {.kind = (uint16_t)kinds[turn % 4], .id = id++};
    assert_ok_err(tm_channel_send(ch, &f, &b, NULL, 0, &err), &err);
    assert_ok_err(tm_channel_head(ch, &f, &meta, &err), &err);
    assert_true(f.kind == TM_F_ERROR || f.kind == TM_F_OK);
    assert_int_equal(f.id, id - 1);
    assert_ok_err(tm_channel_end(ch, &err), &err);
    tm_buf_release(&b);
  }
  tm_channel_close(ch);
  server_stop(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_ps_writes_what_it_held_at_the_moment),
      cmocka_unit_test(pieces_are_of_the_moment_too),
      cmocka_unit_test(who_waits_for_room_does_not_keep_the_chief_from_making_some),
      cmocka_unit_test(who_waits_for_room_goes_on_without_the_chief),
      cmocka_unit_test(who_does_not_see_the_probe_writes_nothing),
      cmocka_unit_test(one_chief_at_a_time_and_a_chief_that_goes_gives_way),
      cmocka_unit_test(a_chief_that_goes_in_the_middle_leaves_no_file),
      cmocka_unit_test(nonsense_is_refused_and_the_ps_goes_on),
      cmocka_unit_test(malformed_metadata_are_answered),
  };
  return cmocka_run_group_tests(tests, begin, end);
}
