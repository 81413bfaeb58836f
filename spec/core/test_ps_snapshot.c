/* Snapshots: one moment of a store while others change it. */
#include <pthread.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "ps/snapshot.h"
#include "test.h"

static tm_shape mat(int64_t n, int64_t m) {
  return tm_shape_of(2, (const int64_t[]){n, m});
}

static tm_store *store(void) {
  tm_store *s;
  assert_ok(tm_store_new("/job:ps/task:0", &s));
  return s;
}

static void make(tm_store *s, uint64_t uid, tm_shape shape, double a) {
  tm_err err = {0};
  tm_shard_spec sp = {
      .uid = uid, .dtype = TM_F32, .shape = shape, .full_shape = shape, .user = true};
  strcpy(sp.init.kind, "constant");
  sp.init.a = a;
  assert_ok_err(tm_store_create(s, &sp, &err), &err);
}

/* Rows of two tables and their slots, and a dense counter, in one UPDATE. */
enum { IDS = 64 };

static tm_status bump(tm_store *s, int64_t width, int64_t rows, uint64_t *seed) {
  static const float one = 1;
  int64_t ids[IDS];
  float *y = calloc((size_t)(IDS * width), sizeof *y);
  *seed = *seed * 6364136223846793005u + 1442695040888963407u;
  int64_t start = (int64_t)((*seed >> 33) % (uint64_t)rows);
  for (int i = 0; i < IDS; i++) ids[i] = (start + i * 97) % rows;
  for (int64_t i = 0; i < IDS * width; i++) y[i] = 1;
  tm_view id = {TM_I64, tm_shape_of(1, (const int64_t[]){IDS}), ids};
  tm_view rows_of = {TM_F32, mat(IDS, width), y};
  tm_ps_update up[3] = {
      {.kind = TM_PS_APPLY_ROWS,
       .uid = 1,
       .rule = "adagrad",
       .optimizer = 9,
       .nhyper = 3,
       .hyper = {0, 1e-7, 0},
       .t = 1,
       .value = rows_of,
       .ids = id},
      {.kind = TM_PS_SCATTER_ADD, .uid = 2, .value = rows_of, .ids = id},
      {.kind = TM_PS_ADD, .uid = 3, .value = {TM_F32, tm_shape_scalar(), NULL}}};
  up[2].value.data = (void *)(uintptr_t)&one;
  tm_ps_request rq = {.nup = 3, .up = up};
  tm_status st = tm_store_handle(s, &rq);
  free(y);
  return st;
}

typedef struct hammer {
  tm_store *s;
  int64_t width, rows;
  uint64_t seed;
  atomic_bool *stop;
  atomic_long *done;
} hammer;

static void *hammer_main(void *ud) {
  hammer *h = ud;
  while (!atomic_load(h->stop)) {
    if (bump(h->s, h->width, h->rows, &h->seed)) return h;
    atomic_fetch_add(h->done, 1);
  }
  return NULL;
}

static const tm_snapshot_item all[] = {
    {.uid = 1},
    {.uid = 2},
    {.uid = 3},
    {.uid = 1, .optimizer = 9, .slot = "accumulator"},
    {.uid = 2, .optimizer = 9, .slot = "accumulator"}};

/* As a writer of a file does it: parts in order, copies in between.  out[i] is filled.
 */
static void collect(tm_snapshot *sn, float **out, bool asides) {
  size_t cap = 64 << 10;
  void *room = malloc(cap);
  for (int32_t i = 0; i < tm_snapshot_count(sn); i++) {
    const tm_snapshot_part *p = tm_snapshot_part_at(sn, i);
    out[i] = p->there ? malloc((size_t)p->bytes + 1) : NULL;
  }
  for (int32_t i = 0; i < tm_snapshot_count(sn); i++) {
    const tm_snapshot_part *p = tm_snapshot_part_at(sn, i);
    uint32_t crc = 0;
    for (uint64_t at = 0; p->there && at < p->bytes;) {
      tm_snapshot_aside a;
      while (asides && tm_snapshot_take_aside(sn, &a)) {
        memcpy((char *)out[a.part] + a.at, a.p, a.n);
        tm_snapshot_give_aside(sn, &a, tm_crc32c(0, a.p, a.n));
      }
      tm_snapshot_piece piece;
      tm_snapshot_next(sn, i, at, room, cap, &piece);
      assert_true(piece.n > 0);
      if (piece.p) memcpy((char *)out[i] + at, piece.p, piece.n);
      crc = piece.p ? tm_crc32c(crc, piece.p, piece.n)
                    : tm_crc32c_join(crc, piece.crc, piece.n);
      at += piece.n;
    }
    if (p->there) assert_int_equal(crc, tm_crc32c(0, out[i], (size_t)p->bytes));
    tm_snapshot_drop(sn, i);
  }
  free(room);
}

/* Every row of both tables and of the slot has the same count, and all counts are what
 * the counter says. */
static void check(float **x, int64_t rows, int64_t width) {
  double sum = 0;
  for (int64_t r = 0; r < rows; r++) {
    float want = x[1][r * width];
    sum += (double)want;
    for (int64_t k = 0; k < width; k++) {
      if (x[1][r * width + k] != want || x[3][r * width + k] != want)
        fail_msg("row %ld: %g, %g, %g", (long)r, (double)want,
                 (double)x[1][r * width + k], (double)x[3][r * width + k]);
    }
  }
  assert_true(sum == (double)x[2][0] * IDS);
}

static void release(float **x) {
  for (size_t i = 0; i < TM_COUNT(all); i++) free(x[i]);
}

/* first: UPDATEs that come, every other time, before anything is read. */
static void hammered(int64_t rows, int64_t width, int turns, int64_t first,
                     bool asides) {
  tm_store *s = store();
  tm_err err = {0};
  atomic_bool stop = false;
  atomic_long done = 0;
  pthread_t t[3];
  hammer h[3];
  make(s, 1, mat(rows, width), 0);
  make(s, 2, mat(rows, width), 0);
  make(s, 3, tm_shape_scalar(), 0);
  for (int i = 0; i < 3; i++) {
    h[i] = (hammer){s, width, rows, (uint64_t)i + 1, &stop, &done};
    assert_int_equal(pthread_create(&t[i], NULL, hammer_main, &h[i]), 0);
  }
  while (atomic_load(&done) < 10) tm_sleep_ns(100000);
  for (int turn = 0; turn < turns; turn++) {
    tm_snapshot *sn;
    float *x[TM_COUNT(all)];
    assert_ok_err(tm_snapshot_take(s, all, TM_COUNT(all), &sn, &err), &err);
    assert_true(tm_snapshot_part_at(sn, 3)->there);
    assert_false(tm_snapshot_part_at(sn, 4)->there);
    long before = atomic_load(&done);
    if (turn % 2) /* let them overwrite much of it first */
      while (atomic_load(&done) < before + first) tm_sleep_ns(100000);
    collect(sn, x, asides);
    assert_ok_err(tm_snapshot_status(sn, &err), &err);
    tm_snapshot_free(sn);
    check(x, rows, width);
    release(x);
  }
  atomic_store(&stop, true);
  for (int i = 0; i < 3; i++) {
    void *bad;
    pthread_join(t[i], &bad);
    assert_null(bad);
  }
  tm_store_free(s);
}

static void a_snapshot_is_of_one_moment_while_writers_go_on(void **state) {
  (void)state;
  hammered(997, 8, 60, 50, false);
  hammered(37, 1500, 30, 50, false); /* a row is more than a block */
  hammered(5001, 1, 30, 50, false);
}

static void copies_put_away_before_their_turn_are_of_the_moment(void **state) {
  (void)state;
  hammered(16000, 256, 2, 500, true); /* 48 MB: more than half of their room */
}

/* --- what changed --- */

static void with(tm_snapshot_item *it, uint64_t mark, uint64_t base) {
  for (size_t i = 0; i < TM_COUNT(all); i++) {
    it[i] = all[i];
    it[i].mark = mark;
    it[i].base = base;
  }
}

/* Lay the parts of a later snapshot over the arrays of an earlier one. */
static int64_t lay_over(tm_snapshot *sn, float **x, float **got, int64_t width) {
  int64_t changed = 0;
  for (int32_t i = 0; i < tm_snapshot_count(sn); i++) {
    const tm_snapshot_part *p = tm_snapshot_part_at(sn, i);
    if (!p->there) continue;
    if (!p->diff) {
      memcpy(x[i], got[i], (size_t)p->bytes);
      continue;
    }
    int64_t n = p->shape.dim[0], id[7], last = -1;
    changed += n;
    for (int64_t from = 0; from < n;) {
      size_t some = tm_snapshot_ids(sn, i, from, id, 7);
      assert_true(some > 0);
      for (size_t k = 0; k < some; k++, from++) {
        assert_true(id[k] > last);
        last = id[k];
        memcpy(x[i] + id[k] * width, got[i] + from * width,
               (size_t)width * sizeof(float));
      }
    }
    assert_int_equal(tm_snapshot_ids(sn, i, n, id, 7), 0);
  }
  return changed;
}

static void hammered_diff(int64_t rows, int64_t width, int turns, bool asides) {
  tm_store *s = store();
  tm_err err = {0};
  atomic_bool stop = false;
  atomic_long done = 0;
  pthread_t t[2];
  hammer h[2];
  tm_snapshot *sn;
  tm_snapshot_item it[TM_COUNT(all)];
  float *x[TM_COUNT(all)], *got[TM_COUNT(all)];
  make(s, 1, mat(rows, width), 0);
  make(s, 2, mat(rows, width), 0);
  make(s, 3, tm_shape_scalar(), 0);
  for (int i = 0; i < 2; i++) {
    h[i] = (hammer){s, width, rows, (uint64_t)i + 1, &stop, &done};
    assert_int_equal(pthread_create(&t[i], NULL, hammer_main, &h[i]), 0);
  }
  while (atomic_load(&done) < 3) tm_sleep_ns(100000);
  with(it, 7, 0);
  assert_ok_err(tm_snapshot_take(s, it, TM_COUNT(all), &sn, &err), &err);
  collect(sn, x, asides);
  tm_snapshot_free(sn);
  check(x, rows, width);
  with(it, 0, 7);
  for (int turn = 0; turn < turns; turn++) {
    assert_ok_err(tm_snapshot_take(s, it, TM_COUNT(all), &sn, &err), &err);
    assert_true(tm_snapshot_part_at(sn, 0)->diff && tm_snapshot_part_at(sn, 3)->diff);
    assert_false(tm_snapshot_part_at(sn, 2)->diff);
    long before = atomic_load(&done);
    if (turn % 2)
      while (atomic_load(&done) < before + 20) tm_sleep_ns(100000);
    collect(sn, got, asides);
    assert_ok_err(tm_snapshot_status(sn, &err), &err);
    assert_true(lay_over(sn, x, got, width) <= 3 * rows);
    tm_snapshot_free(sn);
    check(x, rows, width);
    release(got);
  }
  atomic_store(&stop, true);
  for (int i = 0; i < 2; i++) {
    void *bad;
    pthread_join(t[i], &bad);
    assert_null(bad);
  }
  release(x);
  tm_store_free(s);
}

static void rows_that_changed_make_the_moment_with_the_earlier_one(void **state) {
  (void)state;
  hammered_diff(20011, 8, 16, false);
  hammered_diff(1037, 1500, 10, false);
  hammered_diff(5001, 1, 10, false);
  hammered_diff(12000, 256, 3, true);
}

static void nothing_changed_is_a_part_of_no_rows(void **state) {
  (void)state;
  tm_store *s = store();
  tm_err err = {0};
  tm_snapshot *sn;
  tm_snapshot_item it[TM_COUNT(all)];
  float *x[TM_COUNT(all)];
  uint64_t seed = 1;
  make(s, 1, mat(500, 4), 0);
  make(s, 2, mat(500, 4), 0);
  make(s, 3, tm_shape_scalar(), 0);
  assert_ok(bump(s, 4, 500, &seed));
  with(it, 7, 0);
  assert_ok_err(tm_snapshot_take(s, it, TM_COUNT(all), &sn, &err), &err);
  tm_snapshot_free(sn);
  with(it, 0, 7);
  assert_ok_err(tm_snapshot_take(s, it, TM_COUNT(all), &sn, &err), &err);
  assert_true(tm_snapshot_part_at(sn, 0)->diff);
  assert_int_equal(tm_snapshot_part_at(sn, 0)->bytes, 0);
  collect(sn, x, false);
  release(x);
  tm_snapshot_free(sn);
  /* Another mark, and an assignment of all, end it: the whole is given. */
  with(it, 0, 8);
  assert_ok_err(tm_snapshot_take(s, it, TM_COUNT(all), &sn, &err), &err);
  assert_false(tm_snapshot_part_at(sn, 0)->diff);
  tm_snapshot_free(sn);
  float *value = calloc(2000, sizeof *value);
  tm_ps_place place = {.uid = 1, .slot = -1};
  tm_view v = {TM_F32, mat(500, 4), value};
  assert_ok_err(tm_store_put(s, &place, &v, &err), &err);
  free(value);
  with(it, 0, 7);
  assert_ok_err(tm_snapshot_take(s, it, TM_COUNT(all), &sn, &err), &err);
  assert_false(tm_snapshot_part_at(sn, 0)->diff);
  assert_true(tm_snapshot_part_at(sn, 1)->diff);
  tm_snapshot_free(sn);
  tm_store_free(s);
}

static void a_dense_shard_that_did_not_change_is_a_part_of_no_rows(void **state) {
  (void)state;
  tm_store *s = store();
  tm_err err = {0};
  tm_snapshot *sn;
  float y[12] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  int64_t id = 1, got[4];
  make(s, 1, mat(3, 4), 5);
  tm_snapshot_item it = {.uid = 1, .mark = 7};
  assert_ok_err(tm_snapshot_take(s, &it, 1, &sn, &err), &err);
  tm_snapshot_free(sn);
  it = (tm_snapshot_item){.uid = 1, .base = 7};
  assert_ok_err(tm_snapshot_take(s, &it, 1, &sn, &err), &err);
  assert_true(tm_snapshot_part_at(sn, 0)->diff);
  assert_int_equal(tm_snapshot_part_at(sn, 0)->bytes, 0);
  assert_int_equal(tm_snapshot_ids(sn, 0, 0, got, 4), 0);
  tm_snapshot_free(sn);
  /* By rows from now on: the row is counted. */
  tm_ps_update up = {.kind = TM_PS_SCATTER_ADD,
                     .uid = 1,
                     .value = {TM_F32, mat(1, 4), y},
                     .ids = {TM_I64, tm_shape_of(1, (const int64_t[]){1}), &id}};
  tm_ps_request rq = {.nup = 1, .up = &up};
  assert_ok(tm_store_handle(s, &rq));
  assert_ok_err(tm_snapshot_take(s, &it, 1, &sn, &err), &err);
  assert_int_equal(tm_snapshot_part_at(sn, 0)->shape.dim[0], 1);
  assert_int_equal(tm_snapshot_ids(sn, 0, 0, got, 4), 1);
  assert_int_equal(got[0], 1);
  tm_snapshot_free(sn);
  /* A change of all: the whole is given, of a dense shard too. */
  for (uint64_t uid = 1; uid <= 2; uid++) {
    if (uid == 2) make(s, 2, mat(3, 4), 5);
    it = (tm_snapshot_item){.uid = uid, .mark = 8};
    assert_ok_err(tm_snapshot_take(s, &it, 1, &sn, &err), &err);
    tm_snapshot_free(sn);
    up = (tm_ps_update){.kind = TM_PS_ADD, .uid = uid, .value = {TM_F32, mat(3, 4), y}};
    rq = (tm_ps_request){.nup = 1, .up = &up};
    assert_ok(tm_store_handle(s, &rq));
    it = (tm_snapshot_item){.uid = uid, .base = 8};
    assert_ok_err(tm_snapshot_take(s, &it, 1, &sn, &err), &err);
    assert_false(tm_snapshot_part_at(sn, 0)->diff);
    tm_snapshot_free(sn);
  }
  tm_store_free(s);
}

/* --- bounds --- */

static void writers_wait_for_the_reader_when_copies_fill_their_room(void **state) {
  (void)state;
  enum { ROWS = 40000, WIDTH = 256 };
  tm_store *s = store();
  tm_err err = {0};
  atomic_bool stop = false;
  atomic_long done = 0;
  pthread_t t;
  hammer h = {s, WIDTH, ROWS, 1, &stop, &done};
  tm_snapshot *sn;
  float *x[TM_COUNT(all)];
  make(s, 1, mat(ROWS, WIDTH), 0);
  make(s, 2, mat(ROWS, WIDTH), 0);
  make(s, 3, tm_shape_scalar(), 0);
  uint64_t seed = 3;
  assert_ok(bump(s, WIDTH, ROWS, &seed));
  assert_ok_err(tm_snapshot_take(s, all, TM_COUNT(all), &sn, &err), &err);
  int64_t before = tm_mem_live();
  assert_int_equal(pthread_create(&t, NULL, hammer_main, &h), 0);
  /* Until it stands; on a busy machine it may seem to, long before. */
  int64_t grown = 0;
  for (long last = -1; last != atomic_load(&done) || grown <= TM_SNAPSHOT_ASIDE / 2;) {
    last = atomic_load(&done);
    tm_sleep_ns(100000000);
    grown = tm_mem_live() - before;
  }
  assert_true(grown < TM_SNAPSHOT_ASIDE * 5 / 4);
  long stood = atomic_load(&done);
  collect(sn, x, true);
  assert_ok_err(tm_snapshot_status(sn, &err), &err);
  check(x, ROWS, WIDTH);
  release(x);
  tm_snapshot_free(sn);
  while (atomic_load(&done) < stood + 100) tm_sleep_ns(1000000);
  atomic_store(&stop, true);
  pthread_join(t, NULL);
  assert_true(tm_mem_live() <= before);
  tm_store_free(s);
}

static void a_reader_that_stands_still_does_not_stop_training(void **state) {
  (void)state;
  enum { ROWS = 40000, WIDTH = 256 };
  tm_store *s = store();
  tm_err err = {0};
  tm_snapshot *sn;
  make(s, 1, mat(ROWS, WIDTH), 0);
  make(s, 2, mat(ROWS, WIDTH), 0);
  make(s, 3, tm_shape_scalar(), 0);
  uint64_t seed = 3;
  assert_ok(bump(s, WIDTH, ROWS, &seed));
  assert_ok_err(tm_snapshot_take(s, all, TM_COUNT(all), &sn, &err), &err);
  int64_t start = tm_now_ns(), longest = 0;
  while (tm_snapshot_status(sn, &err) == TM_OK) {
    int64_t t0 = tm_now_ns();
    assert_ok(bump(s, WIDTH, ROWS, &seed));
    if (tm_now_ns() - t0 > longest) longest = tm_now_ns() - t0;
    assert_true(tm_now_ns() - start < 60000000000);
  }
  assert_int_equal(err.code, TM_EABORTED);
  assert_non_null(strstr(err.msg, "faster than they can be saved"));
  assert_true(longest < TM_SNAPSHOT_PATIENCE_NS * 3 / 2);
  tm_snapshot_free(sn);
  tm_store_free(s);
}

/* --- dense shards --- */

static tm_status add(tm_store *s, uint64_t uid, int64_t n, float by) {
  float *x = malloc((size_t)n * sizeof *x);
  for (int64_t i = 0; i < n; i++) x[i] = by;
  tm_ps_update up = {.kind = TM_PS_APPLY,
                     .uid = uid,
                     .rule = "sgd",
                     .optimizer = 4,
                     .nhyper = 3,
                     .hyper = {-1, 1, 0},
                     .t = 1,
                     .value = {TM_F32, mat(n, 1), x}};
  tm_ps_request rq = {.nup = 1, .up = &up};
  tm_status st = tm_store_handle(s, &rq);
  free(x);
  return st;
}

static tm_tensor *read_dense(tm_store *s, uint64_t uid, int64_t n) {
  tm_ps_read rd = {.kind = TM_PS_DENSE, .uid = uid, .dst = {TM_F32, mat(n, 1), NULL}};
  tm_ps_request rq = {.nrd = 1, .rd = &rd};
  assert_ok_err(tm_store_handle(s, &rq), &rq.err);
  return rd.out;
}

static const tm_snapshot_item dense[] = {
    {.uid = 1}, {.uid = 1, .optimizer = 4, .slot = "momentum"}};

static void a_dense_shard_costs_one_version_more(void **state) {
  (void)state;
  enum { N = 1 << 18 };
  tm_store *s = store();
  tm_err err = {0};
  tm_snapshot *sn;
  make(s, 1, mat(N, 1), 0);
  assert_ok(add(s, 1, N, 1)); /* 1, momentum 1 */
  int64_t one = N * (int64_t)sizeof(float), before = tm_mem_live();
  assert_ok_err(tm_snapshot_take(s, dense, 2, &sn, &err), &err);
  assert_true(tm_mem_live() - before < one / 2); /* by reference */
  for (int i = 0; i < 5; i++) assert_ok(add(s, 1, N, 1));
  assert_true(tm_mem_live() - before < 2 * one + one / 2); /* of both arrays */
  float *x[2];
  collect(sn, x, true);
  assert_true(tm_mem_live() - before < one / 2);
  for (int i = 0; i < N; i++) assert_true(x[0][i] == 1 && x[1][i] == 1);
  for (int i = 0; i < 2; i++) free(x[i]);
  tm_snapshot_free(sn);
  assert_true(tm_mem_live() - before < one / 2);
  tm_store_free(s);
}

static void versions_of_readers_stay_theirs_beside_a_snapshot(void **state) {
  (void)state;
  enum { N = 1000 };
  tm_store *s = store();
  tm_err err = {0};
  tm_tensor *held[8];
  int n = 0;
  make(s, 1, mat(N, 1), 0);
  float want[8], now = 0, moment = 0;
  for (int turn = 0; turn < 8; turn++) {
    tm_snapshot *sn = NULL;
    if (turn % 2) {
      assert_ok_err(tm_snapshot_take(s, dense, 1, &sn, &err), &err);
      moment = now;
    }
    held[n] = read_dense(s, 1, N);
    want[n++] = now;
    for (int i = 0; i < 3; i++) {
      assert_ok(add(s, 1, N, 0)); /* without momentum this adds nothing */
      float one[N];
      for (int k = 0; k < N; k++) one[k] = 1;
      tm_ps_update up = {
          .kind = TM_PS_ADD, .uid = 1, .value = {TM_F32, mat(N, 1), one}};
      tm_ps_request rq = {.nup = 1, .up = &up};
      assert_ok(tm_store_handle(s, &rq));
      now += 1;
    }
    if (sn) {
      float *x[1];
      collect(sn, x, false);
      for (int k = 0; k < N; k++) assert_true(x[0][k] == moment);
      free(x[0]);
      tm_snapshot_free(sn);
    }
  }
  for (int i = 0; i < n; i++) {
    for (int k = 0; k < N; k++) assert_true(((float *)held[i]->v.data)[k] == want[i]);
    tm_tensor_unref(held[i]);
  }
  tm_store_free(s);
}

static void a_shard_may_become_a_table_or_go_meanwhile(void **state) {
  (void)state;
  enum { N = 1000 };
  tm_store *s = store();
  tm_err err = {0};
  tm_snapshot *sn;
  make(s, 1, mat(N, 1), 5);
  make(s, 2, mat(N, 1), 6);
  assert_ok_err(tm_snapshot_take(s, (const tm_snapshot_item[]){{.uid = 1}, {.uid = 2}},
                                 2, &sn, &err),
                &err);
  int64_t id = 7;
  float x = 1;
  tm_ps_update up = {.kind = TM_PS_SCATTER_ADD,
                     .uid = 1,
                     .value = {TM_F32, mat(1, 1), &x},
                     .ids = {TM_I64, tm_shape_of(1, (const int64_t[]){1}), &id}};
  tm_ps_request rq = {.nup = 1, .up = &up};
  assert_ok_err(tm_store_handle(s, &rq), &rq.err);
  tm_store_drop(s, 2, 0);
  float *got[2];
  collect(sn, got, false);
  for (int i = 0; i < N; i++) assert_true(got[0][i] == 5 && got[1][i] == 6);
  for (int i = 0; i < 2; i++) free(got[i]);
  tm_snapshot_free(sn);
  tm_store_free(s);
}

/* --- errors --- */

static void one_snapshot_at_a_time_and_only_of_what_is_there(void **state) {
  (void)state;
  tm_store *s = store();
  tm_err err = {0};
  tm_snapshot *sn, *other;
  make(s, 1, mat(4, 1), 0);
  assert_ok_err(tm_snapshot_take(s, dense, 2, &sn, &err), &err);
  assert_false(tm_snapshot_part_at(sn, 1)->there);
  assert_int_equal(tm_snapshot_take(s, dense, 2, &other, &err), TM_EEXISTS);
  assert_null(other);
  tm_snapshot_free(sn);
  const tm_snapshot_item gone = {.uid = 77};
  assert_int_equal(tm_snapshot_take(s, &gone, 1, &sn, &err), TM_ENOTFOUND);
  assert_string_equal(err.task, "/job:ps/task:0");
  assert_ok_err(tm_snapshot_take(s, dense, 1, &sn, &err), &err);
  tm_snapshot_free(sn);
  tm_store_free(s);
}

/* Whatever allocation fails: a clean status, no UPDATE lost, nothing left. */
static void memory_may_run_out_anywhere(void **state) {
  (void)state;
  for (long k = 0; k < 400; k++) {
    struct test_budget b = {k, true};
    tm_mem_hook(test_flaky, &b);
    int64_t before = tm_mem_live();
    tm_store *s;
    tm_snapshot *sn = NULL;
    tm_err err = {0};
    uint64_t seed = 5;
    if (tm_store_new("/job:ps/task:0", &s) == TM_OK) {
      bool ok = true;
      for (uint64_t uid = 1; uid <= 3; uid++) {
        tm_shape shape = uid == 3 ? tm_shape_scalar() : mat(300, 4);
        tm_shard_spec sp = {
            .uid = uid, .dtype = TM_F32, .shape = shape, .full_shape = shape};
        strcpy(sp.init.kind, "zeros");
        ok = tm_store_create(s, &sp, &err) == TM_OK && ok;
      }
      ok = ok && bump(s, 4, 300, &seed) == TM_OK;
      if (ok && tm_snapshot_take(s, all, TM_COUNT(all), &sn, &err) == TM_OK) {
        float *x[TM_COUNT(all)];
        tm_status up = bump(s, 4, 300, &seed);
        collect(sn, x, true);
        tm_err_clear(&err);
        tm_status st = tm_snapshot_status(sn, &err);
        if (st == TM_OK && tm_snapshot_part_at(sn, 3)->there) check(x, 300, 4);
        assert_true(st == TM_OK || st == TM_ENOMEM);
        assert_true(up == TM_OK || up == TM_ENOMEM);
        release(x);
      }
      tm_snapshot_free(sn);
      tm_store_free(s);
    }
    tm_mem_hook(NULL, NULL);
    assert_true(tm_mem_live() == before);
    if (atomic_load(&b.left) > 0) return;
  }
  fail_msg("400 failures did not reach the end");
}

static void sums_of_parts_make_the_sum_of_the_whole(void **state) {
  (void)state;
  char x[5000];
  for (size_t i = 0; i < sizeof x; i++) x[i] = (char)(i * 7 + i / 13);
  for (size_t a = 0; a < sizeof x; a += 61)
    for (size_t n = 0; a + n <= sizeof x; n += 499)
      assert_int_equal(tm_crc32c_join(tm_crc32c(0, x, a), tm_crc32c(0, x + a, n), n),
                       tm_crc32c(0, x, a + n));
}

/* --- tokens --- */

enum { TOKEN_WRITERS = 3, TOKEN_CLOSURES = 600, TOKEN_TURNS = 3 };

typedef struct token_writer {
  tm_store *s;
  uint64_t first;
  atomic_bool *stop;
} token_writer;

static tm_status add_one(tm_store *s, uint64_t closure, uint32_t turn) {
  static float one = 1;
  tm_ps_update up = {
      .kind = TM_PS_ADD, .uid = 3, .value = {TM_F32, tm_shape_scalar(), &one}};
  tm_ps_request rq = {
      .token = {.incarnation = 7, .closure = closure, .turn = turn, .lowest = 1},
      .nup = 1,
      .up = &up};
  return tm_store_handle(s, &rq);
}

/* Each turn is sent twice, as after a cut. */
static void *token_main(void *ud) {
  token_writer *w = ud;
  for (uint64_t c = w->first; c <= TOKEN_CLOSURES; c += TOKEN_WRITERS)
    for (uint32_t turn = 0; turn < TOKEN_TURNS; turn++) {
      if (atomic_load(w->stop)) return NULL;
      if (add_one(w->s, c, turn) || add_one(w->s, c, turn)) return w;
    }
  return NULL;
}

static float counter_of(tm_snapshot *sn) {
  float x;
  tm_snapshot_piece piece;
  tm_snapshot_next(sn, 0, 0, &x, sizeof x, &piece);
  memcpy(&x, piece.p, sizeof x);
  return x;
}

static void tokens_of_a_snapshot_are_those_of_its_values(void **state) {
  (void)state;
  uint64_t closure[TOKEN_CLOSURES], turns[TOKEN_CLOSURES];
  const tm_snapshot_item it = {.uid = 3};
  atomic_bool stop = false;
  pthread_t thread[TOKEN_WRITERS];
  token_writer w[TOKEN_WRITERS];
  tm_err err = {0};
  tm_store *s = store();
  make(s, 3, tm_shape_scalar(), 0);
  for (size_t i = 0; i < TOKEN_CLOSURES; i++) closure[i] = i + 1;
  for (uint64_t i = 0; i < TOKEN_WRITERS; i++) {
    w[i] = (token_writer){s, i + 1, &stop};
    assert_int_equal(pthread_create(&thread[i], NULL, token_main, &w[i]), 0);
  }
  for (float x = 0; x < TOKEN_CLOSURES * TOKEN_TURNS;) {
    tm_snapshot *sn;
    uint64_t sum = 0;
    tm_token_list q = {closure, turns, TOKEN_CLOSURES};
    assert_ok_err(tm_snapshot_take_tokens(s, &it, 1, &q, &sn, &err), &err);
    for (int i = 0; i < TOKEN_CLOSURES; i++) sum += turns[i];
    x = counter_of(sn);
    tm_snapshot_free(sn);
    if (sum != (uint64_t)x) atomic_store(&stop, true);
    assert_int_equal(sum, (uint64_t)x);
  }
  for (int i = 0; i < TOKEN_WRITERS; i++) {
    void *failed;
    pthread_join(thread[i], &failed);
    assert_null(failed);
  }
  tm_store_free(s);
}

static void what_a_checkpoint_has_is_not_applied_again(void **state) {
  (void)state;
  uint64_t closure[] = {5, 6}, turns[] = {1, 2};
  const tm_snapshot_item it = {.uid = 3};
  tm_snapshot *sn;
  tm_err err = {0};
  tm_store *s = store();
  make(s, 3, tm_shape_scalar(), 0);
  tm_token_list q = {closure, turns, 2};
  assert_ok_err(tm_store_add_tokens(s, &q, &err), &err);
  assert_ok(add_one(s, 5, 0));
  assert_ok(add_one(s, 6, 0));
  assert_ok(add_one(s, 6, 1));
  assert_ok(add_one(s, 4, 0)); /* a closure that it had nothing of */
  assert_ok(add_one(s, 5, 1)); /* and a turn */
  turns[1] = 1;
  assert_ok_err(tm_store_add_tokens(s, &q, &err), &err); /* takes nothing away */
  assert_ok(add_one(s, 6, 1));
  assert_ok_err(tm_snapshot_take_tokens(s, &it, 1, &q, &sn, &err), &err);
  assert_float_equal(counter_of(sn), 2, 0);
  assert_int_equal(turns[0], 2);
  assert_int_equal(turns[1], 2);
  tm_snapshot_free(sn);
  tm_store_free(s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sums_of_parts_make_the_sum_of_the_whole),
      cmocka_unit_test(a_snapshot_is_of_one_moment_while_writers_go_on),
      cmocka_unit_test(copies_put_away_before_their_turn_are_of_the_moment),
      cmocka_unit_test(rows_that_changed_make_the_moment_with_the_earlier_one),
      cmocka_unit_test(nothing_changed_is_a_part_of_no_rows),
      cmocka_unit_test(a_dense_shard_that_did_not_change_is_a_part_of_no_rows),
      cmocka_unit_test(writers_wait_for_the_reader_when_copies_fill_their_room),
      cmocka_unit_test(a_reader_that_stands_still_does_not_stop_training),
      cmocka_unit_test(a_dense_shard_costs_one_version_more),
      cmocka_unit_test(versions_of_readers_stay_theirs_beside_a_snapshot),
      cmocka_unit_test(a_shard_may_become_a_table_or_go_meanwhile),
      cmocka_unit_test(one_snapshot_at_a_time_and_only_of_what_is_there),
      cmocka_unit_test(memory_may_run_out_anywhere),
      cmocka_unit_test(tokens_of_a_snapshot_are_those_of_its_values),
      cmocka_unit_test(what_a_checkpoint_has_is_not_applied_again),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
