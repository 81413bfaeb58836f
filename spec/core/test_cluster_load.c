/* A ps reads its part of a checkpoint itself, and what it makes of one that is damaged,
 * not there, or of nonsense. */
#include <pthread.h>

#include "base/clock.h"
#include "ckpt/file.h"
#include "ckpt/writer.h"
#include "cluster/ps_load.h"
#include "cluster/ps_remote.h"
#include "cluster/ps_service.h"
#include "cluster/vars_load.h"
#include "net/loop.h"
#include "test.h"

enum { ROWS = 100, WIDTH = 3, OPTIMIZER = 77, SLOT_M = 6 };

static char dir[200];
static char path[TM_PATH_MAX];

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

/* "t": element i is i; "m": element i is -i; "d": one float64. */
static int save(void **state) {
  (void)state;
  tm_err err = {0};
  tm_ckpt_writer *w;
  tm_tensor *t;
  tm_shape shape = {2, {ROWS, WIDTH}}, one = {1, {1}};
  test_dir(dir, sizeof dir);
  assert_ok(tm_path_join(path, dir, "ckpt-1", &err));
  assert_ok_err(tm_ckpt_create(path, &w, &err), &err);
  for (int k = 0; k < 2; k++) {
    assert_ok(tm_tensor_new(TM_F32, &shape, &t, &err));
    for (int i = 0; i < ROWS * WIDTH; i++)
      ((float *)t->v.data)[i] = (float)(k ? -i : i);
    assert_ok_err(tm_ckpt_put(w, k ? "m" : "t", &shape, 0, t, &err), &err);
    tm_tensor_unref(t);
  }
  assert_ok(tm_tensor_new(TM_F64, &one, &t, &err));
  *(double *)t->v.data = 0.5;
  assert_ok_err(tm_ckpt_put(w, "d", &one, 0, t, &err), &err);
  tm_tensor_unref(t);
  assert_ok_err(tm_ckpt_commit(w, &err), &err);
  tm_ckpt_writer_free(w);
  return 0;
}

static int drop(void **state) {
  (void)state;
  test_rmdir(dir);
  return 0;
}

static void make_shard(tm_ps_client *c, int64_t rows) {
  tm_err err = {0};
  tm_shard_spec sp = {.uid = 1,
                      .dtype = TM_F32,
                      .shape = {2, {rows, WIDTH}},
                      .full_shape = {2, {rows, WIDTH}},
                      .user = true,
                      .init = {"constant", 5, 0, 0, NULL}};
  assert_ok_err(c->create(c, &sp, 1, &err), &err);
}

static tm_ps_load ask(const tm_ps_load_item *item, int32_t n, bool check) {
  tm_ckpt_reader *r;
  tm_err err = {0};
  tm_ps_load l = {.path = path, .check = check, .item = item, .n = n};
  assert_ok_err(tm_ckpt_open(path, &r, &err), &err);
  tm_ckpt_identity(r, &l.size, &l.crc);
  tm_ckpt_close(r);
  return l;
}

static tm_status load(tm_ps_client *c, tm_ps_load *l, tm_err *err) {
  tm_err_clear(err);
  assert_ok_err(c->load(c, l, err), err);
  return c->loaded(c, l, err);
}

/* Element 0 of a row, of the elements or of slot "m". */
static float value(tm_ps_client *c, int64_t row, bool slot) {
  tm_err err = {0};
  tm_ps_read rd = {.kind = slot ? TM_PS_SLOT : TM_PS_DENSE,
                   .uid = 1,
                   .optimizer = OPTIMIZER,
                   .slot = "m"};
  tm_ps_request rq = {.nrd = 1, .rd = &rd};
  assert_ok_err(c->begin(c, &rq, &err), &err);
  assert_ok_err(c->wait(c, &rq, &err), &err);
  if (rq.rd_status) return -1000;
  float x = ((float *)rd.out->v.data)[row * WIDTH];
  tm_tensor_unref(rd.out);
  return x;
}

/* Rows 20..49 of the checkpoint are rows 5..34 of the shard. */
static const tm_ps_load_item items[] = {{"t", 20, 30, {1, 0, -1, 0, 5}},
                                        {"m", 20, 30, {1, 0, SLOT_M, OPTIMIZER, 5}}};

static void rows_and_slots_come_from_the_files(void **state) {
  (void)state;
  server s;
  tm_err err = {0};
  server_start(&s);
  tm_ps_client *c = dial(&s);
  make_shard(c, 40);
  tm_ps_load l = ask(items, 2, true);
  assert_ok_err(load(c, &l, &err), &err);
  assert_false(l.unseen);
  assert_true(value(c, 5, false) == 5); /* it was only looked at */
  l = ask(items, 2, false);
  assert_ok_err(load(c, &l, &err), &err);
  assert_false(l.unseen);
  assert_true(value(c, 4, false) == 5 && value(c, 35, false) == 5);
  assert_true(value(c, 5, false) == 60 && value(c, 34, false) == 147);
  assert_true(value(c, 5, true) == -60 && value(c, 4, true) == 0);
  c->close(c);
  server_stop(&s);
}

static void who_does_not_see_the_checkpoint_says_so(void **state) {
  (void)state;
  server s;
  tm_err err = {0};
  server_start(&s);
  tm_ps_client *c = dial(&s);
  make_shard(c, 40);
  for (int k = 0; k < 4; k++) {
    tm_ps_load l = ask(items, 2, k % 2);
    if (k < 2)
      l.path = "/nowhere/ckpt-1";
    else
      l.crc++; /* another checkpoint under the same path */
    assert_ok_err(load(c, &l, &err), &err);
    assert_true(l.unseen);
  }
  assert_true(value(c, 5, false) == 5);
  /* Then rows are sent. */
  float row[2 * WIDTH] = {1, 2, 3, 4, 5, 6};
  tm_view v = {TM_F32, {2, {2, WIDTH}}, row};
  tm_ps_place p = {1, 0, -1, 0, 7};
  assert_ok_err(c->put(c, &p, &v, &err), &err);
  assert_true(value(c, 7, false) == 1 && value(c, 8, false) == 4);
  c->close(c);
  server_stop(&s);
}

static void damage_is_found_before_anything_changes(void **state) {
  (void)state;
  server s;
  tm_err err = {0};
  char data[TM_PATH_MAX];
  server_start(&s);
  tm_ps_client *c = dial(&s);
  make_shard(c, 40);
  assert_ok(tm_path_join(data, path, "data-00000.safetensors", NULL));
  FILE *f = fopen(data, "r+b");
  assert_int_equal(fseek(f, -1, SEEK_END), 0);
  int last = fgetc(f);
  assert_int_equal(fseek(f, -1, SEEK_END), 0);
  fputc(last + 1, f);
  fflush(f);
  tm_ps_load l = ask(items, 2, true);
  assert_int_equal(load(c, &l, &err), TM_EDATALOSS);
  assert_non_null(strstr(err.msg, "data-00000.safetensors"));
  assert_string_equal(err.task, "/job:ps/task:0");
  assert_true(value(c, 5, false) == 5);
  assert_int_equal(fseek(f, -1, SEEK_END), 0);
  fputc(last, f);
  fclose(f);
  c->close(c);
  server_stop(&s);
}

static void what_does_not_fit_is_refused_and_named(void **state) {
  (void)state;
  static const struct {
    tm_ps_load_item item;
    tm_status want;
    const char *text;
  } bad[] = {
      {{"none", 0, 1, {1, 0, -1, 0, 0}}, TM_ENOTFOUND, "none"},
      {{"t", 90, 11, {1, 0, -1, 0, 0}}, TM_ERANGE, "fewer rows"},
      {{"t", 0, 10, {1, 0, -1, 0, 31}}, TM_EINVAL, "40 rows"},
      {{"t", 0, 10, {1, 3, -1, 0, 0}}, TM_ENOTFOUND, "not here"},
      {{"t", 0, 10, {9, 0, -1, 0, 0}}, TM_ENOTFOUND, "not here"},
      {{"t", 0, 10, {1, 0, 99, OPTIMIZER, 0}}, TM_EINVAL, "99"},
      {{"d", 0, 1, {1, 0, -1, 0, 0}}, TM_EINVAL, "float64"},
  };
  server s;
  tm_err err = {0};
  server_start(&s);
  tm_ps_client *c = dial(&s);
  make_shard(c, 40);
  for (size_t i = 0; i < TM_COUNT(bad); i++) {
    tm_ps_load l = ask(&bad[i].item, 1, false);
    tm_status st = load(c, &l, &err);
    if (st != bad[i].want || !strstr(err.msg, bad[i].text))
      fail_msg("%zu: %d %s", i, st, err.msg);
  }
  assert_true(value(c, 0, false) == 5);
  c->close(c);
  server_stop(&s);
}

static void nonsense_is_answered_and_the_connection_goes_on(void **state) {
  (void)state;
  server s;
  tm_err err = {0};
  tm_channel *ch;
  server_start(&s);
  tm_channel_options o = options(&s);
  snprintf(o.self.purpose, sizeof o.self.purpose, "data");
  assert_ok_err(tm_channel_open(&o, &ch, &err), &err);
  for (uint64_t k = 1; k < 40; k++) {
    tm_buf meta = TM_BUF_INIT(1 << 16);
    tm_packer w;
    tm_pack_init(&w, &meta);
    tm_pack_array(&w, k % 2 ? 5 : 7);
    tm_pack_cstr(&w, k % 3 ? "/x" : NULL);
    for (uint64_t i = 0; i < k % 9; i++) tm_pack_uint(&w, i * k);
    if (k % 5 == 0) tm_pack_array(&w, 60000);
    tm_frame f = {.kind = TM_F_PS_LOAD, .id = k}, got;
    const uint8_t *answer;
    assert_ok_err(tm_channel_send(ch, &f, &meta, NULL, 0, &err), &err);
    assert_ok_err(tm_channel_head(ch, &got, &answer, &err), &err);
    assert_int_equal(got.kind, TM_F_ERROR);
    assert_int_equal(got.id, k);
    assert_ok_err(tm_channel_end(ch, &err), &err);
    tm_buf_release(&meta);
  }
  tm_channel_close(ch);
  server_stop(&s);
}

typedef struct many {
  server *s;
  int tries, fine, refused;
} many;

static void *load_often(void *ud) {
  many *m = ud;
  tm_err err = {0};
  tm_ps_client *c = dial(m->s);
  /* Whoever is refused each time, because others are there, comes again. */
  for (; m->tries < 30 || (m->fine == 0 && m->tries < 100000); m->tries++) {
    if (m->tries >= 30) tm_sleep_ns(1000000);
    tm_ps_load l = ask(items, 2, m->tries % 2);
    tm_status s = load(c, &l, &err);
    m->fine += s == TM_OK;
    m->refused += s == TM_EEXHAUSTED;
  }
  c->close(c);
  return NULL;
}

static void many_may_load_at_once_and_the_ps_may_end_meanwhile(void **state) {
  (void)state;
  server s;
  pthread_t t[12];
  many m[12];
  tm_err err = {0};
  server_start(&s);
  tm_ps_client *c = dial(&s);
  make_shard(c, 40);
  for (int i = 0; i < 12; i++) {
    m[i] = (many){.s = &s};
    assert_int_equal(pthread_create(&t[i], NULL, load_often, &m[i]), 0);
  }
  for (int i = 0; i < 12; i++) {
    pthread_join(t[i], NULL);
    assert_int_equal(m[i].fine + m[i].refused, m[i].tries);
    assert_true(m[i].fine > 0);
  }
  assert_true(value(c, 5, false) == 60);
  tm_ps_load l = ask(items, 2, false);
  assert_ok_err(c->load(c, &l, &err), &err);
  server_stop(&s);
  c->close(c);
}

/* --- in process --- */

static tm_status in_process(void *ud) {
  tm_store *store;
  tm_catalog *catalog = NULL;
  tm_ps_client *local = NULL;
  tm_vars *v = NULL;
  tm_var_info *info = NULL;
  tm_ckpt_reader *r = NULL;
  tm_init init = {.kind = "zeros"};
  tm_shape shape = {2, {ROWS, WIDTH}};
  tm_err err = {0};
  (void)ud;
  TM_TRY(tm_store_new("/job:chief/task:0", &store));
  tm_status s = tm_catalog_new(&catalog);
  if (s == TM_OK) s = tm_ps_client_local(store, &local);
  if (s == TM_OK) s = tm_vars_new(catalog, NULL, 0, local, &v);
  if (s && local) local->close(local);
  if (s == TM_OK) s = tm_var_info_new(1, TM_F32, &shape, "v", true, 1, &info);
  if (s == TM_OK) {
    info->shard[0] = (tm_shard_info){-1, 0, ROWS};
    s = tm_vars_create(v, info, &init, &err);
  }
  if (s == TM_OK) s = tm_ckpt_open(path, &r, &err);
  for (int k = 0; k < 2 && s == TM_OK; k++) {
    tm_vars_load_item it[] = {{1, -1, tm_ckpt_find(r, "t"), 0, -1, 0},
                              {1, -1, tm_ckpt_find(r, "m"), 0, SLOT_M, OPTIMIZER}};
    s = tm_vars_load(v, r, path, it, 2, k == 0, NULL, &err);
  }
  tm_ckpt_close(r);
  tm_var_info_unref(info);
  tm_vars_free(v);
  tm_catalog_unref(catalog);
  tm_store_free(store);
  return s;
}

static void every_allocation_may_fail(void **state) {
  (void)state;
  assert_true(test_torture(in_process, NULL) > 20);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows_and_slots_come_from_the_files),
      cmocka_unit_test(who_does_not_see_the_checkpoint_says_so),
      cmocka_unit_test(damage_is_found_before_anything_changes),
      cmocka_unit_test(what_does_not_fit_is_refused_and_named),
      cmocka_unit_test(nonsense_is_answered_and_the_connection_goes_on),
      cmocka_unit_test(many_may_load_at_once_and_the_ps_may_end_meanwhile),
      cmocka_unit_test(every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, save, drop);
}
