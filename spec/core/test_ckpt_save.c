/* Checkpoints on disk: whole or not there, whatever fails and whenever the process
 * ends. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "ckpt/file.h"
#include "ckpt/reader.h"
#include "ckpt/state.h"
#include "ckpt/writer.h"
#include "test_folder.h"

/* Rows first.. of a table (rows, 2) whose element i is i + base. */
static tm_tensor *rows_of(int64_t first, int64_t n, float base) {
  tm_shape s = tm_shape_of(2, (int64_t[]){n, 2});
  tm_tensor *t;
  if (tm_tensor_new(TM_F32, &s, &t, NULL)) return NULL;
  for (int64_t i = 0; i < 2 * n; i++)
    ((float *)t->v.data)[i] = base + (float)(2 * first + i);
  return t;
}

/* A table of 5 rows in pieces of 2, 2, 1 and a value. */
static tm_status save(const char *path, float base, tm_err *err) {
  tm_ckpt_writer *w;
  tm_shape full = tm_shape_of(2, (int64_t[]){5, 2});
  tm_status s = tm_ckpt_create(path, &w, err);
  for (int64_t first = 0; s == TM_OK && first < 5; first += 2) {
    tm_tensor *t = rows_of(first, first == 4 ? 1 : 2, base);
    s = t ? tm_ckpt_put(w, "model/table", &full, first, t, err) : TM_ENOMEM;
    tm_tensor_unref(t);
  }
  if (s == TM_OK) s = tm_ckpt_value_int(w, "step", (int64_t)base, err);
  if (s == TM_OK) s = tm_ckpt_commit(w, err);
  tm_ckpt_writer_free(w);
  return s;
}

/* The checkpoint's base, read back and compared in full; negative: a status. */
static int64_t load(const char *path, tm_err *err) {
  tm_ckpt_reader *r;
  tm_tensor *t;
  tm_status s = tm_ckpt_open(path, &r, err);
  if (s == TM_OK) s = tm_ckpt_verify(r, err);
  if (s) {
    tm_ckpt_close(r);
    return s;
  }
  assert_int_equal(tm_ckpt_nvalue(r), 1);
  int64_t base = tm_ckpt_value_at(r, 0)->i;
  const tm_ckpt_tensor *e = tm_ckpt_find(r, "model/table");
  assert_non_null(e);
  for (int64_t first = 0; first <= 5; first++)
    for (int64_t n = 0; first + n <= 5; n++) {
      assert_ok_err(tm_ckpt_read(r, e, first, n, &t, err), err);
      for (int64_t i = 0; i < 2 * n; i++)
        assert_true(((float *)t->v.data)[i] == (float)(base + 2 * first + i));
      tm_tensor_unref(t);
    }
  assert_int_equal(tm_ckpt_read(r, e, 3, 3, &t, err), TM_ERANGE);
  tm_ckpt_close(r);
  return base;
}

static size_t count_names(const char *path) {
  size_t n = 0;
  DIR *d = opendir(path);
  assert_non_null(d);
  for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
  closedir(d);
  return n;
}

static void any_range_of_rows_is_read_from_any_shards(void **state) {
  (void)state;
  char path[TM_PATH_MAX];
  tm_err err = {0};
  assert_ok_err(save(in_dir(path, "deep/er/имя with space-1"), 100, &err), &err);
  assert_int_equal(load(path, &err), 100);
  assert_int_equal(count_names(path), 2);
}

static void a_checkpoint_of_the_same_name_is_replaced(void **state) {
  (void)state;
  char path[TM_PATH_MAX], parent[TM_PATH_MAX];
  tm_err err = {0};
  in_dir(parent, "again");
  in_dir(path, "again/ckpt-1");
  assert_ok_err(save(path, 1, &err), &err);
  assert_ok_err(save(path, 2, &err), &err);
  assert_int_equal(load(path, &err), 2);
  assert_int_equal(count_names(parent), 1);
}

static void values_of_each_kind_come_back(void **state) {
  (void)state;
  char path[TM_PATH_MAX];
  tm_err err = {0};
  tm_ckpt_writer *w;
  assert_ok_err(tm_ckpt_create(in_dir(path, "values"), &w, &err), &err);
  assert_ok(tm_ckpt_value_int(w, "int", INT64_MIN, &err));
  assert_ok(tm_ckpt_value_real(w, "real", 0.1, &err));
  assert_ok(tm_ckpt_value_real(w, "inf", -(double)INFINITY, &err));
  assert_ok(tm_ckpt_value_bool(w, "bool", true, &err));
  assert_ok(tm_ckpt_value_str(w, "str", "a\0b", 3, &err));
  assert_ok(tm_ckpt_value_str(w, "bytes", "\xff\0\x10", 3, &err));
  assert_ok(tm_ckpt_value_str(w, "empty", "", 0, &err));
  assert_ok_err(tm_ckpt_commit(w, &err), &err);
  assert_int_equal(tm_ckpt_commit(w, &err), TM_EPRECOND);
  tm_ckpt_writer_free(w);
  tm_ckpt_reader *r;
  assert_ok_err(tm_ckpt_open(path, &r, &err), &err);
  assert_int_equal(tm_ckpt_nvalue(r), 7);
  assert_true(tm_ckpt_value_at(r, 0)->i == INT64_MIN);
  assert_true(tm_ckpt_value_at(r, 1)->x == 0.1);
  assert_true(tm_ckpt_value_at(r, 2)->x == -(double)INFINITY);
  assert_int_equal(tm_ckpt_value_at(r, 3)->kind, TM_CKPT_BOOL);
  assert_memory_equal(tm_ckpt_value_at(r, 4)->p, "a\0b", 3);
  assert_memory_equal(tm_ckpt_value_at(r, 5)->p, "\xff\0\x10", 3);
  assert_int_equal(tm_ckpt_value_at(r, 6)->n, 0);
  tm_ckpt_close(r);
}

static void pieces_that_do_not_follow_are_refused(void **state) {
  (void)state;
  char path[TM_PATH_MAX], parent[TM_PATH_MAX];
  tm_err err = {0};
  tm_ckpt_writer *w;
  tm_shape full = tm_shape_of(2, (int64_t[]){5, 2});
  tm_tensor *t = rows_of(0, 2, 0);
  in_dir(parent, "pieces");
  for (int k = 0; k < 4; k++) {
    assert_ok_err(tm_ckpt_create(in_dir(path, "pieces/x"), &w, &err), &err);
    if (k == 0) assert_int_equal(tm_ckpt_put(w, "t", &full, 2, t, &err), TM_EINVAL);
    if (k > 0) assert_ok(tm_ckpt_put(w, "t", &full, 0, t, &err));
    if (k == 1) assert_int_equal(tm_ckpt_put(w, "u", &full, 0, t, &err), TM_EINVAL);
    if (k == 2) assert_int_equal(tm_ckpt_put(w, "t", &full, 4, t, &err), TM_EINVAL);
    assert_int_equal(tm_ckpt_commit(w, &err), TM_EPRECOND);
    tm_ckpt_writer_free(w);
  }
  tm_tensor_unref(t);
  assert_int_equal(count_names(parent), 0);
}

/* ---- damage ---- */

static void patch(const char *path, long at, int delta) {
  FILE *f = fopen(path, "r+b");
  assert_non_null(f);
  assert_int_equal(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET), 0);
  int c = fgetc(f);
  assert_int_equal(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET), 0);
  fputc(c + delta, f);
  fclose(f);
}

static void a_changed_byte_anywhere_is_found_and_the_file_named(void **state) {
  (void)state;
  char path[TM_PATH_MAX], data[TM_PATH_MAX], index[TM_PATH_MAX];
  tm_err err = {0};
  assert_ok_err(save(in_dir(path, "damaged"), 5, &err), &err);
  in_dir(data, "damaged/data-00000.safetensors");
  in_dir(index, "damaged/checkpoint.json");
  const char *files[] = {data, index};
  for (int k = 0; k < 2; k++) {
    struct stat st;
    assert_int_equal(stat(files[k], &st), 0);
    for (long at = 0; at < st.st_size; at++) {
      patch(files[k], at, 1);
      tm_err_clear(&err);
      assert_int_equal(load(path, &err), TM_EDATALOSS);
      assert_non_null(strstr(err.msg, k ? "checkpoint.json" : "data-00000"));
      patch(files[k], at, -1);
    }
  }
  assert_int_equal(load(path, &err), 5);
  assert_int_equal(truncate(data, 100), 0);
  assert_int_equal(load(path, &err), TM_EDATALOSS);
  assert_int_equal(unlink(data), 0);
  assert_int_equal(load(path, &err), TM_ENOTFOUND);
  assert_int_equal(unlink(index), 0);
  assert_int_equal(load(path, &err), TM_ENOTFOUND);
}

/* ---- each call fails, or is the last ---- */

static struct {
  long left; /* calls still let through; negative: all */
  bool kill;
  int error;
  long calls;
} gate;

static bool gate_shut(void) {
  gate.calls++;
  if (gate.left < 0 || gate.left-- > 0) return false;
  if (gate.kill) kill(getpid(), SIGKILL);
  gate.left = 0; /* a broken disk stays broken */
  errno = gate.error;
  return true;
}

#define SYS tm_file_system()
static int gate_open(const char *p, int flags, mode_t m) {
  return gate_shut() ? -1 : SYS->open(p, flags, m);
}
/* Half of it is written before the end. */
static ssize_t gate_write(int fd, const void *p, size_t n) {
  if (gate.left == 0 && gate.kill) n = (size_t)SYS->write(fd, p, n / 2);
  return gate_shut() ? -1 : SYS->write(fd, p, n);
}
static int gate_fsync(int fd) { return gate_shut() ? -1 : SYS->fsync(fd); }
static int gate_close(int fd) {
  bool shut = gate_shut();
  int r = SYS->close(fd);
  return shut ? -1 : r;
}
static int gate_rename(const char *a, const char *b) {
  return gate_shut() ? -1 : SYS->rename(a, b);
}
static int gate_exchange(const char *a, const char *b) {
  return gate_shut() ? -1 : SYS->exchange(a, b);
}
static int gate_mkdir(const char *p, mode_t m) {
  return gate_shut() ? -1 : SYS->mkdir(p, m);
}
static int gate_unlink(const char *p) { return gate_shut() ? -1 : SYS->unlink(p); }
static int gate_rmdir(const char *p) { return gate_shut() ? -1 : SYS->rmdir(p); }

static ssize_t gate_pwrite(int fd, const void *p, size_t n, off_t at) {
  return gate_shut() ? -1 : SYS->pwrite(fd, p, n, at);
}

static int gate_link(const char *a, const char *b) {
  return gate_shut() ? -1 : SYS->link(a, b);
}

static const tm_file_ops gate_ops = {
    gate_open,  gate_write,  gate_fsync, gate_close,  gate_rename, gate_exchange,
    gate_mkdir, gate_unlink, gate_rmdir, gate_pwrite, gate_link};

/* What a manager does: save, list, delete the one before. */
static tm_status turn(const char *where, int n, tm_err *err) {
  char path[TM_PATH_MAX], old[TM_PATH_MAX], name[40];
  tm_ckpt_state list;
  tm_status s = tm_ckpt_state_read(where, &list, err);
  if (s == TM_ENOTFOUND) s = TM_OK;
  snprintf(name, sizeof name, "ckpt-%d", n);
  if (s == TM_OK) s = tm_path_join(path, where, name, err);
  if (s == TM_OK) s = save(path, (float)n, err);
  if (s == TM_OK) {
    s = tm_path_join(old, where, list.latest ? list.latest : "none", err);
    tm_ckpt_state_release(&list);
    s = tm_ckpt_state_add(&list, name, 1, err);
  }
  if (s == TM_OK) s = tm_ckpt_state_write(where, &list, err);
  if (s == TM_OK && n > 1 && strcmp(old, path) != 0) s = tm_ckpt_remove(old, err);
  tm_ckpt_state_release(&list);
  return s;
}

static int64_t latest(const char *where) {
  char path[TM_PATH_MAX];
  tm_err err = {0};
  tm_ckpt_state list;
  assert_ok_err(tm_ckpt_state_read(where, &list, &err), &err);
  assert_ok(tm_path_join(path, where, list.latest, NULL));
  tm_ckpt_state_release(&list);
  int64_t n = load(path, &err);
  if (n < 0) fail_msg("latest does not load: %s", err.msg);
  return n;
}

/* Ends a child at its k-th call; true when it came through. */
static bool killed_at(const char *where, int n, long k) {
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    gate.left = k;
    gate.kill = true;
    tm_file_hook(&gate_ops);
    tm_err err = {0};
    _exit(turn(where, n, &err) == TM_OK ? 0 : 1);
  }
  int status;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  if (WIFEXITED(status)) {
    assert_int_equal(WEXITSTATUS(status), 0);
    return true;
  }
  assert_int_equal(WTERMSIG(status), SIGKILL);
  return false;
}

static void the_latest_loads_whenever_the_process_is_killed(void **state) {
  (void)state;
  char where[TM_PATH_MAX];
  tm_err err = {0};
  long k = 0;
  int n = 1;
  in_dir(where, "killed");
  assert_ok_err(turn(where, n, &err), &err);
  for (bool through = false; !through; k++) {
    int64_t before = latest(where);
    through = killed_at(where, n + 1, k);
    int64_t after = latest(where);
    assert_true(after == before || after == n + 1);
    if (after == n + 1) n++;
    assert_true(k < 200);
  }
  assert_true(k > 15);
}

static void a_sweep_takes_away_what_killed_saves_left_and_nothing_else(void **state) {
  (void)state;
  char where[TM_PATH_MAX], path[TM_PATH_MAX];
  tm_err err = {0};
  tm_ckpt_writer *w;
  in_dir(where, "swept");
  assert_ok_err(turn(where, 1, &err), &err);
  for (long k = 5; k < 12; k++) assert_false(killed_at(where, 2, k));
  for (long k = 8; k < 20; k += 3) assert_false(killed_at(where, 1, k));
  assert_true(count_names(where) > 4);
  assert_ok_err(tm_ckpt_create(in_dir(path, "swept/ckpt-7"), &w, &err), &err);
  tm_ckpt_sweep(where, "other");
  assert_true(count_names(where) > 5);
  tm_ckpt_sweep(where, "ckpt");
  tm_ckpt_sweep("/nowhere", "ckpt");
  assert_int_equal(latest(where), 1);
  assert_ok_err(tm_ckpt_value_int(w, "x", 1, &err), &err);
  assert_ok_err(tm_ckpt_commit(w, &err), &err); /* its directory was held */
  tm_ckpt_writer_free(w);
  size_t left = 0;
  DIR *d = opendir(where);
  for (struct dirent *e; (e = readdir(d));)
    left += strstr(e->d_name, ".tmp-") && strncmp(e->d_name, "ckpt-", 5) == 0;
  closedir(d);
  assert_int_equal(left, 0);
}

static void the_latest_loads_when_its_own_name_is_saved_again_and_killed(void **state) {
  (void)state;
  char where[TM_PATH_MAX];
  tm_err err = {0};
  in_dir(where, "same");
  assert_ok_err(turn(where, 1, &err), &err);
  long k = 0;
  while (!killed_at(where, 1, k++)) assert_int_equal(latest(where), 1);
  assert_true(k > 15);
}

static void a_call_that_fails_is_an_error_and_the_latest_stays(void **state) {
  (void)state;
  char where[TM_PATH_MAX];
  tm_err err = {0};
  in_dir(where, "failing");
  assert_ok_err(turn(where, 1, &err), &err);
  int n = 1;
  tm_status s = TM_EEXHAUSTED;
  for (long k = 0; s != TM_OK && k < 200; k++) {
    gate.left = k;
    gate.kill = false;
    gate.error = ENOSPC;
    tm_file_hook(&gate_ops);
    tm_err_clear(&err);
    s = turn(where, n + 1, &err);
    tm_file_hook(NULL);
    if (s && (s != TM_EEXHAUSTED || !strstr(err.msg, "failing")))
      fail_msg("call %ld: %s", k, err.msg);
    int64_t after = latest(where);
    assert_true(after == n || after == n + 1);
    if (after == n + 1) n++;
  }
  assert_ok(s);
}

static void nothing_is_left_behind_when_only_one_call_fails(void **state) {
  (void)state;
  char where[TM_PATH_MAX], path[TM_PATH_MAX];
  tm_err err = {0};
  /* A directory that is a file: the save cannot begin, nothing is made. */
  in_dir(where, "clean");
  assert_int_equal(mkdir(where, 0777), 0);
  test_file(where, "ckpt-1", "x", 1, path, sizeof path);
  assert_true(save(path, 1, &err) != TM_OK);
  assert_non_null(strstr(err.msg, "ckpt-1"));
  assert_int_equal(count_names(where), 1);
}

/* ---- real disks ---- */

static void a_full_disk_is_an_error_and_the_latest_stays(void **state) {
  (void)state;
  char where[TM_PATH_MAX], big[TM_PATH_MAX];
  tm_err err = {0};
  in_dir(where, "full");
  assert_int_equal(mkdir(where, 0777), 0);
  if (mount("none", where, "tmpfs", 0, "size=64k")) {
    print_message("no tmpfs here\n");
    skip();
  }
  tm_status first = turn(where, 1, &err), s = TM_OK;
  tm_ckpt_writer *w = NULL;
  tm_shape shape = tm_shape_of(1, (int64_t[]){1 << 16});
  tm_tensor *t;
  assert_ok(tm_tensor_new(TM_U8, &shape, &t, NULL));
  memset(t->v.data, 0, 1 << 16);
  assert_ok(tm_path_join(big, where, "big-2", NULL));
  s = tm_ckpt_create(big, &w, &err);
  if (s == TM_OK) s = tm_ckpt_put(w, "big", &shape, 0, t, &err);
  if (s == TM_OK) s = tm_ckpt_commit(w, &err);
  tm_ckpt_writer_free(w);
  tm_tensor_unref(t);
  size_t names = count_names(where);
  int64_t after = first ? -1 : latest(where);
  assert_int_equal(umount(where), 0);
  assert_ok(first);
  assert_int_equal(s, TM_EEXHAUSTED);
  assert_non_null(strstr(err.msg, "big-2"));
  assert_int_equal(names, 2); /* ckpt-1 and the list */
  assert_int_equal(after, 1);
}

static void a_directory_that_may_not_be_written_is_an_error(void **state) {
  (void)state;
  char where[TM_PATH_MAX], path[TM_PATH_MAX];
  tm_err err = {0};
  in_dir(where, "readonly");
  assert_int_equal(mkdir(where, 0777), 0);
  if (mount("none", where, "tmpfs", MS_RDONLY, "size=64k")) {
    print_message("no tmpfs here\n");
    skip();
  }
  assert_ok(tm_path_join(path, where, "ckpt-1", NULL));
  tm_status s = save(path, 1, &err);
  assert_int_equal(umount(where), 0);
  assert_int_equal(s, TM_EPERM);
  assert_non_null(strstr(err.msg, "readonly"));
}

static void unrelated_files_are_ignored_and_stay(void **state) {
  (void)state;
  char path[TM_PATH_MAX], other[TM_PATH_MAX];
  tm_err err = {0};
  assert_ok_err(save(in_dir(path, "mixed"), 3, &err), &err);
  test_file(path, "notes.txt", "hello", 5, other, sizeof other);
  assert_int_equal(load(path, &err), 3);
  assert_ok_err(tm_ckpt_remove(path, &err), &err);
  assert_int_equal(load(path, &err), TM_ENOTFOUND);
  assert_int_equal(tm_ckpt_remove(path, &err), TM_ENOTFOUND);
}

static void a_directory_of_something_else_is_not_replaced(void **state) {
  (void)state;
  char path[TM_PATH_MAX], other[TM_PATH_MAX];
  tm_err err = {0};
  assert_int_equal(mkdir(in_dir(path, "home"), 0777), 0);
  assert_ok_err(save(path, 1, &err), &err); /* empty */
  assert_ok_err(tm_ckpt_remove(path, &err), &err);
  assert_int_equal(mkdir(path, 0777), 0);
  test_file(path, "notes.txt", "hello", 5, other, sizeof other);
  assert_int_equal(save(path, 1, &err), TM_EEXISTS);
  assert_non_null(strstr(err.msg, "notes.txt"));
  assert_int_equal(access(other, F_OK), 0);
  assert_int_equal(save(other, 1, &err), TM_EINVAL);
  assert_non_null(strstr(err.msg, "is a file"));
  assert_int_equal(unlink(other), 0);
  assert_ok_err(save(path, 1, &err), &err);
}

static void two_values_of_one_name_are_refused(void **state) {
  (void)state;
  char path[TM_PATH_MAX];
  tm_err err = {0};
  tm_ckpt_writer *w;
  assert_ok_err(tm_ckpt_create(in_dir(path, "values"), &w, &err), &err);
  assert_ok_err(tm_ckpt_value_int(w, "a", 1, &err), &err);
  assert_int_equal(tm_ckpt_value_int(w, "a", 2, &err), TM_EEXISTS);
  tm_ckpt_writer_free(w);
}

/* ---- memory ---- */

static tm_status save_body(void *ud) {
  tm_err err = {0};
  return save(ud, 4, &err);
}

static tm_status read_body(void *ud) {
  tm_ckpt_reader *r;
  tm_tensor *t = NULL;
  tm_status s = tm_ckpt_open(ud, &r, NULL);
  if (s == TM_OK) s = tm_ckpt_verify(r, NULL);
  if (s == TM_OK) s = tm_ckpt_read(r, tm_ckpt_tensor_at(r, 0), 1, 3, &t, NULL);
  tm_tensor_unref(t);
  tm_ckpt_close(r);
  return s;
}

static tm_status list_body(void *ud) {
  tm_ckpt_state s;
  memset(&s, 0, sizeof s);
  tm_status st = tm_ckpt_state_add(&s, "a", 1, NULL);
  if (st == TM_OK) st = tm_ckpt_state_add(&s, "b", 2, NULL);
  if (st == TM_OK) st = tm_ckpt_state_write(ud, &s, NULL);
  tm_ckpt_state_release(&s);
  if (st == TM_OK) st = tm_ckpt_state_read(ud, &s, NULL);
  tm_ckpt_state_release(&s);
  return st;
}

static void every_allocation_may_fail(void **state) {
  (void)state;
  char path[TM_PATH_MAX], where[TM_PATH_MAX];
  in_dir(path, "memory/ckpt-1");
  in_dir(where, "memory");
  assert_true(test_torture(save_body, path) > 5);
  assert_true(test_torture(read_body, path) > 10);
  assert_true(test_torture(list_body, where) > 5);
  assert_int_equal(count_names(where), 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(any_range_of_rows_is_read_from_any_shards),
      cmocka_unit_test(a_checkpoint_of_the_same_name_is_replaced),
      cmocka_unit_test(values_of_each_kind_come_back),
      cmocka_unit_test(pieces_that_do_not_follow_are_refused),
      cmocka_unit_test(a_changed_byte_anywhere_is_found_and_the_file_named),
      cmocka_unit_test(the_latest_loads_whenever_the_process_is_killed),
      cmocka_unit_test(a_sweep_takes_away_what_killed_saves_left_and_nothing_else),
      cmocka_unit_test(the_latest_loads_when_its_own_name_is_saved_again_and_killed),
      cmocka_unit_test(a_call_that_fails_is_an_error_and_the_latest_stays),
      cmocka_unit_test(nothing_is_left_behind_when_only_one_call_fails),
      cmocka_unit_test(a_full_disk_is_an_error_and_the_latest_stays),
      cmocka_unit_test(a_directory_that_may_not_be_written_is_an_error),
      cmocka_unit_test(unrelated_files_are_ignored_and_stay),
      cmocka_unit_test(a_directory_of_something_else_is_not_replaced),
      cmocka_unit_test(two_values_of_one_name_are_refused),
      cmocka_unit_test(every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
