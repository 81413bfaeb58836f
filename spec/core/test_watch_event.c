/* Event files: whole records whatever fails, and what is in them. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <zlib.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "ckpt/file.h"
#include "test_folder.h"
#include "watch/event.h"
#include "watch/event.pb-c.h"
#include "watch/gzip.h"
#include "watch/png.h"
#include "watch/record.h"

static uint32_t unmask(uint32_t m) {
  uint32_t r = m - 0xa282ead8u;
  return (r >> 17) | (r << 15);
}

static size_t read_all(const char *path, uint8_t **out) {
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  fseek(f, 0, SEEK_END);
  long n = ftell(f);
  rewind(f);
  *out = malloc((size_t)n + 1);
  assert_non_null(*out);
  assert_int_equal(fread(*out, 1, (size_t)n, f), n);
  fclose(f);
  return (size_t)n;
}

/* Whole records of a file, each given to fn; the bytes behind them. */
static size_t each(const char *path, void (*fn)(const TmPb__Event *, void *), void *ud,
                   int *count) {
  uint8_t *p;
  size_t n = read_all(path, &p), at = 0;
  *count = 0;
  while (n - at >= 16) {
    size_t len = (size_t)tm_get64(p + at);
    assert_int_equal(unmask(tm_get32(p + at + 8)), tm_crc32c(0, p + at, 8));
    if (n - at - 16 < len) break;
    assert_int_equal(unmask(tm_get32(p + at + 12 + len)),
                     tm_crc32c(0, p + at + 12, len));
    TmPb__Event *e = tm_pb__event__unpack(NULL, len, p + at + 12);
    assert_non_null(e);
    if (*count == 0) assert_string_equal(e->file_version, "brain.Event:2");
    if (fn && *count > 0) fn(e, ud);
    tm_pb__event__free_unpacked(e, NULL);
    ++*count;
    at += len + 16;
  }
  free(p);
  return n - at;
}

static tm_event_tag tag(const char *name, int64_t step) {
  return (tm_event_tag){{name, strlen(name)}, step};
}

static tm_event_writer *writer(int64_t flush_ms) {
  tm_event_writer *w;
  tm_err err = {0};
  assert_ok_err(tm_event_open(dir, "", flush_ms, &w, &err), &err);
  return w;
}

/* --- framing --- */

static void a_mask_is_that_of_tensorflow(void **state) {
  (void)state;
  char path[400];
  tm_record_file *f;
  void *p;
  uint8_t *all;
  snprintf(path, sizeof path, "%s/r", dir);
  assert_ok(tm_record_create(path, &f, NULL));
  assert_ok(tm_record_begin(f, 3, &p, NULL));
  memcpy(p, "abc", 3);
  tm_record_end(f);
  assert_ok(tm_record_close(f, NULL));
  /* By TensorFlow's tf.io.TFRecordWriter. */
  static const uint8_t head[8] = {3, 0, 0, 0, 0, 0, 0, 0};
  assert_int_equal(read_all(path, &all), 19);
  assert_memory_equal(all, head, 8);
  assert_int_equal(tm_get32(all + 8), 0x0e4999b0u);
  assert_int_equal(tm_get32(all + 15), 0x21f1576eu);
  free(all);
  assert_int_equal(tm_record_create(path, &f, NULL), TM_EEXISTS);
  assert_null(f);
}

static void the_buffer_is_bounded_and_large_records_are_refused(void **state) {
  (void)state;
  char path[400];
  tm_record_file *f;
  void *p;
  tm_err err = {0};
  snprintf(path, sizeof path, "%s/r", dir);
  assert_ok(tm_record_create(path, &f, NULL));
  for (int i = 0; i < 3000; i++) {
    assert_ok(tm_record_begin(f, 1000, &p, NULL));
    memset(p, i, 1000);
    tm_record_end(f);
    assert_true(tm_record_waiting(f) <= TM_RECORD_BUFFER);
  }
  assert_int_equal(tm_record_begin(f, (size_t)TM_RECORD_MAX + 1, &p, &err),
                   TM_EEXHAUSTED);
  assert_non_null(strstr(err.msg, "/r\""));
  assert_ok(tm_record_begin(f, 1 << 20, &p, NULL));
  memset(p, 7, 1 << 20);
  tm_record_end(f);
  assert_ok(tm_record_close(f, &err));
  uint8_t *all;
  assert_int_equal(read_all(path, &all), 3000 * 1016 + (1 << 20) + 16);
  free(all);
}

/* --- values --- */

struct seen {
  int n;
  float last;
  int64_t step;
};

static void see_scalar(const TmPb__Event *e, void *ud) {
  struct seen *s = ud;
  assert_int_equal(e->summary->n_value, 1);
  TmPb__Value *v = e->summary->value[0];
  assert_int_equal(v->value_case, TM_PB__VALUE__VALUE_SIMPLE_VALUE);
  assert_true(e->wall_time > 1e9);
  s->n++;
  s->last = v->simple_value;
  s->step = e->step;
}

static void a_scalar_may_be_nan_and_zero(void **state) {
  (void)state;
  static const double values[] = {1.5, 0, (double)NAN, (double)INFINITY, -3};
  tm_event_writer *w = writer(60000);
  char path[400];
  int n;
  struct seen s = {0};
  tm_event_tag at = tag("loss", INT64_MIN);
  for (int i = 0; i < 5; i++) assert_ok(tm_event_scalar(w, &at, values[i], NULL));
  snprintf(path, sizeof path, "%s", tm_event_path(w));
  assert_ok(tm_event_flush(w, NULL));
  assert_int_equal(each(path, see_scalar, &s, &n), 0);
  assert_int_equal(n, 6);
  assert_true(s.n == 5 && s.last == -3 && s.step == INT64_MIN);
  assert_ok(tm_event_close(w, NULL));
}

static void see_histogram(const TmPb__Event *e, void *ud) {
  const TmPb__HistogramProto *h = e->summary->value[0]->histo;
  double total = 0;
  int *n = ud;
  assert_int_equal(h->n_bucket, 4);
  for (size_t i = 0; i < 4; i++) {
    assert_true(isfinite(h->bucket_limit[i]));
    total += h->bucket[i];
  }
  assert_true(total == h->num);
  if (++*n == 1) {
    assert_true(h->min == 0 && h->max == 8 && h->sum == 36 && h->sum_squares == 204);
    assert_true(h->bucket[0] == 2 && h->bucket[3] == 3);
    assert_true(h->bucket_limit[0] == 2 && h->bucket_limit[3] == 8);
  }
}

static void log_doubles(tm_event_writer *w, const double *x, int64_t count) {
  tm_shape s = tm_shape_of(1, &count);
  tm_view v = {TM_F64, s, (void *)(uintptr_t)x};
  tm_event_tag at = tag("h", 1);
  assert_ok(tm_event_histogram(w, &at, &v, 4, NULL));
}

static void a_histogram_counts_every_finite_element(void **state) {
  (void)state;
  static const double ramp[] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  static const double odd[] = {(double)NAN, 1, (double)-INFINITY, 2};
  static const double wide[] = {-1.7e308, 1.7e308, 0, 5e-324, 1e308};
  static const double tiny[] = {0, 5e-324}, one[] = {3, 3, 3},
                      nothing[] = {(double)NAN};
  tm_event_writer *w = writer(60000);
  char path[400];
  int n, seen = 0;
  log_doubles(w, ramp, 9);
  log_doubles(w, odd, 4);
  log_doubles(w, wide, 5);
  log_doubles(w, tiny, 2);
  log_doubles(w, one, 3);
  log_doubles(w, nothing, 1);
  log_doubles(w, nothing, 0);
  snprintf(path, sizeof path, "%s", tm_event_path(w));
  assert_ok(tm_event_close(w, NULL));
  assert_int_equal(each(path, see_histogram, &seen, &n), 0);
  assert_int_equal(seen, 7);
}

static void see_image(const TmPb__Event *e, void *ud) {
  const TmPb__TensorProto *t = e->summary->value[0]->tensor;
  const TmPb__SummaryMetadata *m = e->summary->value[0]->metadata;
  int *n = ud;
  ++*n;
  assert_string_equal(m->plugin_data->plugin_name, "images");
  assert_true(t->n_string_val == 4 && t->tensor_shape->dim[0]->size == 4);
  assert_memory_equal(t->string_val[0].data, "3", 1);
  assert_memory_equal(t->string_val[1].data, "2", 1);
  for (int i = 2; i < 4; i++)
    assert_memory_equal(t->string_val[i].data, "\x89PNG\r\n\x1a\n", 8);
}

static void images_are_png_files_after_their_size(void **state) {
  (void)state;
  tm_event_writer *w = writer(60000);
  char path[400];
  int n, seen = 0;
  uint8_t bytes[3 * 2 * 3 * 1] = {0};
  float floats[3 * 2 * 3 * 1] = {NAN, -1, 2};
  tm_shape s = tm_shape_of(4, (int64_t[]){3, 2, 3, 1});
  tm_view a = {TM_U8, s, bytes}, b = {TM_F32, s, floats};
  tm_event_tag at = tag("i", 1);
  assert_ok(tm_event_image(w, &at, &a, 2, NULL));
  assert_ok(tm_event_image(w, &at, &b, 2, NULL));
  a.shape.rank = 1;
  tm_err err = {0};
  assert_int_equal(tm_event_image(w, &at, &a, 2, &err), TM_EINVAL);
  assert_non_null(strstr(err.msg, "(3)"));
  a.dtype = TM_I64;
  assert_int_equal(tm_event_image(w, &at, &a, 2, &err), TM_EINVAL);
  assert_non_null(strstr(err.msg, "int64"));
  snprintf(path, sizeof path, "%s", tm_event_path(w));
  assert_ok(tm_event_close(w, NULL));
  assert_int_equal(each(path, see_image, &seen, &n), 0);
  assert_int_equal(seen, 2);
}

/* --- names --- */

static void a_bad_tag_is_refused_and_leaves_nothing(void **state) {
  (void)state;
  static const tm_str bad[] = {
      {"", 0},     {"a\nb", 3},         {"a\0b", 3},     {"\xff", 1},
      {"\xc3", 1}, {"\xed\xa0\x80", 3}, {"\xc0\x80", 2}, {"\xf4\x90\x80\x80", 4}};
  tm_event_writer *w = writer(60000);
  char path[400], at_most[TM_EVENT_TAG + 2];
  tm_err err = {0};
  int n;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    tm_event_tag at = {bad[i], 1};
    assert_int_equal(tm_event_scalar(w, &at, 1, &err), TM_EINVAL);
    assert_non_null(strstr(err.msg, "tag"));
  }
  memset(at_most, 'x', sizeof at_most);
  tm_event_tag at = {{at_most, TM_EVENT_TAG + 1}, 1};
  assert_int_equal(tm_event_scalar(w, &at, 1, &err), TM_EINVAL);
  at.tag.n--;
  assert_ok(tm_event_scalar(w, &at, 1, &err));
  at = tag("имя/€/😀", 1);
  assert_ok(tm_event_scalar(w, &at, 1, &err));
  snprintf(path, sizeof path, "%s", tm_event_path(w));
  assert_ok(tm_event_close(w, NULL));
  assert_int_equal(each(path, NULL, NULL, &n), 0);
  assert_int_equal(n, 3);
}

static void a_directory_that_cannot_be_is_named(void **state) {
  (void)state;
  char path[400], below[500];
  tm_event_writer *w;
  tm_err err = {0};
  test_file(dir, "file", "x", 1, path, sizeof path);
  snprintf(below, sizeof below, "%s/logs", path);
  assert_int_equal(tm_event_open(below, "", 1000, &w, &err), TM_EINVAL);
  assert_null(w);
  assert_non_null(strstr(err.msg, "/file"));
  assert_int_equal(tm_event_open(dir, "/../x", 1000, &w, &err), TM_EINVAL);
}

static void see_plugin(const TmPb__Event *e, void *ud) {
  int *graphs = ud;
  if (e->what_case == TM_PB__EVENT__WHAT_GRAPH_DEF) {
    assert_int_equal(e->graph_def.len, 4);
    assert_memory_equal(e->graph_def.data, "\0\1\2\3", 4);
    ++*graphs;
    return;
  }
  const TmPb__Value *v = e->summary->value[0];
  assert_string_equal(v->tag, "_hparams_/x");
  assert_string_equal(v->metadata->plugin_data->plugin_name, "hparams");
  assert_int_equal(v->metadata->plugin_data->content.len, 3);
  assert_memory_equal(v->metadata->plugin_data->content.data, "a\0b", 3);
  assert_int_equal(v->value_case, TM_PB__VALUE__VALUE_TENSOR);
  assert_int_equal(v->tensor->tensor_shape->dim[0]->size, 0);
  assert_int_equal(e->step, 7);
}

static void graphs_and_what_plugins_keep_are_bytes(void **state) {
  (void)state;
  tm_event_writer *w = writer(60000);
  tm_event_tag at = tag("_hparams_/x", 7);
  char path[400];
  int n, graphs = 0;
  snprintf(path, sizeof path, "%s", tm_event_path(w));
  assert_ok(tm_event_graph(w, (tm_str){"\0\1\2\3", 4}, NULL));
  assert_ok(tm_event_plugin(w, &at, "hparams", (tm_str){"a\0b", 3}, NULL));
  assert_ok(tm_event_close(w, NULL));
  assert_int_equal(each(path, see_plugin, &graphs, &n), 0);
  assert_int_equal(n, 3);
  assert_int_equal(graphs, 1);
}

static void many_writers_have_a_file_each(void **state) {
  (void)state;
  tm_event_writer *w[50];
  for (int i = 0; i < 50; i++) w[i] = writer(0);
  for (int i = 0; i < 50; i++) {
    tm_event_tag at = tag("x", i);
    assert_ok(tm_event_scalar(w[i], &at, i, NULL));
    for (int k = 0; k < i; k++)
      assert_string_not_equal(tm_event_path(w[i]), tm_event_path(w[k]));
  }
  for (int i = 0; i < 50; i++) assert_ok(tm_event_close(w[i], NULL));
}

/* --- failures --- */

static size_t disk; /* bytes that it still takes */

static ssize_t small_write(int fd, const void *p, size_t n) {
  if (disk == 0) {
    errno = ENOSPC;
    return -1;
  }
  if (n > disk) n = disk;
  disk -= n;
  return tm_file_system()->write(fd, p, n);
}

static void a_full_disk_is_told_and_the_file_goes_on_once_there_is_room(void **state) {
  (void)state;
  tm_file_ops ops = *tm_file_system();
  tm_event_writer *w = writer(60000);
  tm_event_tag at = tag("loss", 0);
  tm_err err = {0};
  char path[400];
  int n, taken = 0, refused = 0;
  ops.write = small_write;
  disk = 1000;
  tm_file_hook(&ops);
  snprintf(path, sizeof path, "%s", tm_event_path(w));
  for (int i = 0; i < 20000; i++) {
    at.step = i;
    tm_status s = tm_event_scalar(w, &at, 1, &err);
    if (s == TM_OK)
      taken++;
    else
      assert_int_equal(s, TM_EEXHAUSTED);
    refused += s != TM_OK;
  }
  assert_true(refused > 0 && taken > 0);
  assert_non_null(strstr(err.msg, path));
  assert_non_null(strstr(err.msg, "make room"));
  assert_true(each(path, NULL, NULL, &n) > 0); /* a cut record, then whole ones */
  disk = SIZE_MAX / 2;
  assert_ok(tm_event_close(w, NULL));
  assert_int_equal(each(path, NULL, NULL, &n), 0);
  assert_int_equal(n, taken + 1);
}

/* Ends the process in the middle of a write. */
static ssize_t deadly_write(int fd, const void *p, size_t n) {
  (void)!tm_file_system()->write(fd, p, n / 2 + 1);
  raise(SIGKILL);
  return -1;
}

static void a_crash_in_the_middle_of_a_record_leaves_those_before_it(void **state) {
  (void)state;
  tm_event_writer *w = writer(60000);
  tm_event_tag at = tag("loss", 1);
  char path[400];
  int n, status;
  snprintf(path, sizeof path, "%s", tm_event_path(w));
  for (int i = 0; i < 10; i++) assert_ok(tm_event_scalar(w, &at, 1, NULL));
  assert_ok(tm_event_flush(w, NULL));
  pid_t pid = fork();
  if (pid == 0) {
    tm_file_ops ops = *tm_file_system();
    ops.write = deadly_write;
    tm_file_hook(&ops);
    if (tm_event_scalar(w, &at, 2, NULL) == TM_OK) (void)tm_event_close(w, NULL);
    _exit(0);
  }
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFSIGNALED(status));
  assert_true(each(path, NULL, NULL, &n) > 0);
  assert_int_equal(n, 11);
  assert_ok(tm_event_close(w, NULL));
}

static void a_packed_file_is_whole_or_its_failure_is_told(void **state) {
  (void)state;
  char path[400], text[3000], back[4000];
  tm_err err = {0};
  tm_file_ops ops = *tm_file_system();
  snprintf(path, sizeof path, "%s/t.gz", dir);
  for (size_t i = 0; i < sizeof text; i++) text[i] = (char)('a' + i * i % 23);
  for (int i = 0; i < 2; i++) /* the second replaces the first */
    assert_ok_err(tm_gzip_write(path, text, sizeof text, &err), &err);
  gzFile f = gzopen(path, "rb");
  assert_non_null(f);
  assert_int_equal(gzread(f, back, sizeof back), sizeof text);
  gzclose(f);
  assert_memory_equal(text, back, sizeof text);
  ops.write = small_write;
  disk = 10;
  tm_file_hook(&ops);
  assert_int_equal(tm_gzip_write(path, text, sizeof text, &err), TM_EEXHAUSTED);
  assert_non_null(strstr(err.msg, "t.gz"));
  tm_file_hook(NULL);
  snprintf(path, sizeof path, "%s/none/t.gz", dir);
  assert_int_equal(tm_gzip_write(path, text, 1, &err), TM_ENOTFOUND);
}

static tm_status log_all(void *ud) {
  (void)ud;
  tm_event_writer *w;
  tm_event_tag at = tag("t", 1);
  float x[6] = {0, 1, 2, 3, 4, 5};
  tm_str words[2] = {{"a", 1}, {"", 0}};
  tm_view v = {TM_F32, tm_shape_of(2, (int64_t[]){2, 3}), x};
  tm_view t = {TM_STRING, tm_shape_of(1, (int64_t[]){2}), words};
  TM_TRY(tm_event_open(dir, "", 0, &w, NULL));
  tm_status s = tm_event_scalar(w, &at, 1, NULL);
  if (s == TM_OK) s = tm_event_histogram(w, &at, &v, 30, NULL);
  if (s == TM_OK) s = tm_event_image(w, &at, &v, 1, NULL);
  if (s == TM_OK) s = tm_event_text(w, &at, &t, NULL);
  if (s == TM_OK) s = tm_event_graph(w, words[0], NULL);
  if (s == TM_OK) s = tm_event_plugin(w, &at, "hparams", words[0], NULL);
  tm_status closed = tm_event_close(w, NULL);
  return s ? s : closed;
}

static void an_allocation_that_fails_leaves_nothing(void **state) {
  (void)state;
  assert_true(test_torture(log_all, NULL) > 3);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, make_dir, drop_dir)
  const struct CMUnitTest tests[] = {
      T(a_mask_is_that_of_tensorflow),
      T(the_buffer_is_bounded_and_large_records_are_refused),
      T(a_scalar_may_be_nan_and_zero),
      T(a_histogram_counts_every_finite_element),
      T(images_are_png_files_after_their_size),
      T(a_bad_tag_is_refused_and_leaves_nothing),
      T(a_directory_that_cannot_be_is_named),
      T(many_writers_have_a_file_each),
      T(a_full_disk_is_told_and_the_file_goes_on_once_there_is_room),
      T(a_crash_in_the_middle_of_a_record_leaves_those_before_it),
      T(graphs_and_what_plugins_keep_are_bytes),
      T(a_packed_file_is_whole_or_its_failure_is_told),
      T(an_allocation_that_fails_leaves_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
