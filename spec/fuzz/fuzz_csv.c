/* A csv, text or idx file of any bytes (gzip too) is read to its end, or fails with a
 * message.  The first byte picks options, the rest is the file. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/iterator.h"
#include "data/source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ROWS = 2000 };

static const char *file_of(const uint8_t *data, size_t size) {
  static char path[64];
  static int fd = -1;
  if (fd < 0) {
    char name[64]; /* in memory: a disk would be most of the time */
    snprintf(name, sizeof name, "/tidemill-fuzz-%ld", (long)getpid());
    fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0) abort();
    shm_unlink(name);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  }
  if (ftruncate(fd, 0) || pwrite(fd, data, size, 0) != (ssize_t)size) abort();
  return path;
}

static tm_status source(uint8_t how, const char *const *file, tm_dataset **out,
                        tm_err *err) {
  const tm_text_options text = {file, 1, NULL};
  const tm_idx_options idx = {file, 1, NULL, 0, NULL};
  tm_csv_options csv;
  if ((how & 3) == 1) return tm_data_text_line(&text, out, err);
  if ((how & 3) == 2) return tm_data_idx(&idx, out, err);
  tm_csv_defaults(&csv);
  csv.files = file;
  csv.nfiles = 1;
  csv.header = how & 4;
  csv.delimiter = how & 8 ? '\t' : ',';
  csv.quote = how & 16 ? 0 : '"';
  csv.na_value = how & 32 ? "?" : NULL;
  csv.comment = how & 64 ? "|" : NULL;
  csv.skip = how >> 7;
  return tm_data_csv(&csv, out, err);
}

static void read_rows(tm_dataset *ds) {
  static tm_tensor *t[TM_DATA_WIDTH];
  tm_iter_env env = {-1, 1, 1, 0, NULL};
  tm_err err = {0};
  tm_iter *it;
  if (tm_dataset_iterate(ds, &env, &it, &err)) return;
  for (int i = 0; i < ROWS; i++) {
    tm_status s = tm_iter_next(it, t, &err);
    if (s == TM_ERANGE) break;
    if (s != TM_OK && !err.msg[0]) __builtin_trap();
    for (int32_t k = 0; s == TM_OK && k < tm_dataset_width(ds); k++) {
      if (t[k]->v.dtype == TM_STRING) { /* touch every byte */
        const tm_str *x = t[k]->v.data;
        if (x->n && memchr(x->p, '\n', x->n) == x->p + x->n) __builtin_trap();
      }
      tm_tensor_unref(t[k]);
    }
  }
  tm_iter_free(it);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  tm_dataset *ds;
  tm_err err = {0};
  if (size == 0) return 0;
  const char *path = file_of(data + 1, size - 1);
  if (source(data[0], &path, &ds, &err)) {
    if (!err.msg[0]) __builtin_trap();
    return 0;
  }
  read_rows(ds);
  tm_dataset_unref(ds);
  return 0;
}
