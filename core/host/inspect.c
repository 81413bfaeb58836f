#include "host/inspect.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "ckpt/file.h"
#include "ckpt/reader.h"
#include "ckpt/state.h"
#include "ckpt/writer.h"

/*
 * Design.  Without names: a line each of files, tensors and values.  With names: these
 * tensors' elements, summarised.  The checksums are compared unless --quick.
 */
enum { INSPECT_EDGE = 1000 };

static int inspect_usage(FILE *to) {
  fputs(
      "usage: tidemill inspect [--quick] CHECKPOINT [NAME...]\n"
      "CHECKPOINT is a checkpoint, or a directory whose latest is meant.  Names of\n"
      "tensors and values in it: print what they hold.  --quick: compare no "
      "checksums.\n",
      to);
  return to == stderr ? 2 : 0;
}

static int inspect_fail(const tm_err *err) {
  fprintf(stderr, "tidemill: %s: %s\n", tm_status_name(err->code), err->msg);
  return 1;
}

static void inspect_size(uint64_t n) {
  static const char *const unit[] = {"B", "KB", "MB", "GB", "TB"};
  double x = (double)n;
  int k = 0;
  while (x >= 1024 && k < 4) {
    x /= 1024;
    k++;
  }
  printf("%.*f %s", k ? 1 : 0, x, unit[k]);
}

/* A directory with a list stands for its latest. */
static tm_status inspect_find(const char *given, char *path, tm_err *err) {
  tm_ckpt_state list;
  struct stat st;
  TM_TRY(tm_path_join(path, given, TM_CKPT_INDEX, err));
  bool is = stat(path, &st) == 0;
  tm_status s = is ? TM_ENOTFOUND : tm_ckpt_state_read(given, &list, NULL);
  if (s || !list.latest) {
    snprintf(path, TM_PATH_MAX, "%s", given);
    if (s == TM_OK) tm_ckpt_state_release(&list);
    return TM_OK;
  }
  s = tm_path_join(path, given, list.latest, err);
  tm_ckpt_state_release(&list);
  return s;
}

static uint64_t inspect_bytes(const tm_ckpt_tensor *t) {
  return (uint64_t)tm_shape_count(&t->shape) * tm_dtype_size(t->dtype);
}

static void inspect_value(const tm_ckpt_value *v) {
  switch (v->kind) {
    case TM_CKPT_INT:
      printf("%" PRId64, v->i);
      break;
    case TM_CKPT_REAL:
      printf("%.17g", v->x);
      break;
    case TM_CKPT_BOOL:
      fputs(v->i ? "true" : "false", stdout);
      break;
    case TM_CKPT_STR:
      putchar('"');
      for (size_t i = 0; i < v->n && i < 200; i++) {
        unsigned char c = (unsigned char)v->p[i];
        if (c < 32 || c == '"' || c == '\\' || c == 127)
          printf("\\x%02x", c);
        else
          putchar(c);
      }
      printf(v->n > 200 ? "\"... (%zu bytes)" : "\"", v->n);
      break;
  }
}

static void inspect_tensor(const tm_ckpt_reader *r, const tm_ckpt_tensor *t) {
  char shape[128];
  uint64_t size;
  uint32_t crc;
  printf("tensor %s %s %s ", t->name, tm_dtype_name(t->dtype),
         tm_shape_text(&t->shape, shape, sizeof shape));
  inspect_size(inspect_bytes(t));
  for (size_t i = 0; i < t->nshard; i++)
    if (i == 0 || t->shard[i].file != t->shard[i - 1].file)
      printf("%s %s", i ? "," : " in",
             tm_ckpt_file_at(r, t->shard[i].file, &size, &crc));
  int64_t n = 0;
  for (size_t i = 0; i < t->npatch; i++) n += t->patch[i].n;
  if (t->npatch) printf(", %" PRId64 " rows since", n);
  putchar('\n');
}

static void inspect_list(const tm_ckpt_reader *r, const char *path, bool quick) {
  uint64_t size, all = 0;
  uint32_t crc;
  for (size_t i = 0; i < tm_ckpt_nfile(r); i++) {
    tm_ckpt_file_at(r, i, &size, &crc);
    all += size;
  }
  printf("%s: %zu tensors, %zu values, %zu files of ", path, tm_ckpt_ntensor(r),
         tm_ckpt_nvalue(r), tm_ckpt_nfile(r));
  inspect_size(all);
  puts(quick ? "" : ", checksums are right");
  for (size_t i = 0; i < tm_ckpt_nfile(r); i++) {
    const char *name = tm_ckpt_file_at(r, i, &size, &crc);
    printf("file %s %" PRIu64 " bytes, crc32c %08" PRIx32 "\n", name, size, crc);
  }
  for (size_t i = 0; i < tm_ckpt_ntensor(r); i++)
    inspect_tensor(r, tm_ckpt_tensor_at(r, i));
  for (size_t i = 0; i < tm_ckpt_nvalue(r); i++) {
    const tm_ckpt_value *v = tm_ckpt_value_at(r, i);
    printf("value %s ", v->name);
    inspect_value(v);
    putchar('\n');
  }
}

static tm_status inspect_elements(tm_ckpt_reader *r, const tm_ckpt_tensor *t,
                                  tm_err *err) {
  tm_tensor *x;
  tm_buf text = TM_BUF_INIT(16 << 20);
  TM_TRY(tm_ckpt_read(r, t, 0, t->shape.rank ? t->shape.dim[0] : 1, &x, err));
  tm_status s = tm_tensor_text(&x->v, INSPECT_EDGE, &text);
  tm_tensor_unref(x);
  if (s == TM_OK)
    printf("%s = %.*s\n", t->name, (int)text.len, (const char *)text.data);
  tm_buf_release(&text);
  return s ? tm_nomem(err, "a tensor's text") : TM_OK;
}

static tm_status inspect_name(tm_ckpt_reader *r, const char *name, tm_err *err) {
  const tm_ckpt_tensor *t = tm_ckpt_find(r, name);
  if (t) return inspect_elements(r, t, err);
  for (size_t i = 0; i < tm_ckpt_nvalue(r); i++) {
    const tm_ckpt_value *v = tm_ckpt_value_at(r, i);
    if (strcmp(v->name, name) != 0) continue;
    printf("%s = ", name);
    inspect_value(v);
    putchar('\n');
    return TM_OK;
  }
  return tm_fail(err, TM_ENOTFOUND, "the checkpoint has no \"%.300s\"", name);
}

static tm_status inspect_run(const char *given, char **name, int n, bool quick,
                             tm_err *err) {
  char path[TM_PATH_MAX];
  tm_ckpt_reader *r;
  TM_TRY(inspect_find(given, path, err));
  TM_TRY(tm_ckpt_open(path, &r, err));
  tm_status s = TM_OK;
  if (quick)
    tm_ckpt_trust(r);
  else if (n == 0)
    s = tm_ckpt_verify(r, err);
  if (s == TM_OK && n == 0) inspect_list(r, path, quick);
  for (int i = 0; i < n && s == TM_OK; i++) s = inspect_name(r, name[i], err);
  tm_ckpt_close(r);
  return s;
}

int tm_host_inspect(int argc, char **argv) {
  bool quick = false;
  int i = 1;
  for (; i < argc && argv[i][0] == '-'; i++) {
    if (strcmp(argv[i], "--help") == 0) return inspect_usage(stdout);
    if (strcmp(argv[i], "--quick") != 0) return inspect_usage(stderr);
    quick = true;
  }
  if (i >= argc) return inspect_usage(stderr);
  tm_err err;
  tm_err_clear(&err);
  tm_status s = inspect_run(argv[i], argv + i + 1, argc - i - 1, quick, &err);
  return s ? inspect_fail(&err) : 0;
}
