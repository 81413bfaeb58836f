/* Any bytes as a safetensors file, and any JSON as the index or list of a checkpoint
 * (its checksum made right), are read to the end or fail with a message. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "ckpt/reader.h"
#include "ckpt/safetensors.h"
#include "ckpt/state.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char dir[64];

static void drop_dir(void) {
  static const char *const names[] = {"x", "d", "checkpoint.json", "checkpoint"};
  char path[100];
  for (int i = 0; i < 4; i++) {
    snprintf(path, sizeof path, "%s/%s", dir, names[i]);
    unlink(path);
  }
  rmdir(dir);
}

static void put(const char *name, const char *head, const void *p, size_t n) {
  char path[100];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  FILE *f = fopen(path, "wb");
  if (!f) abort();
  if (fputs(head, f) < 0 || fwrite(p, 1, n, f) != n || fclose(f)) abort();
}

/* Two rows, their numbers, and the strings "a" and "bc". */
static void make_dir(void) {
  static const char header[] =
      "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
      "\"i\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[8,24]},"
      "\"s\":{\"dtype\":\"U8\",\"shape\":[11],\"data_offsets\":[24,35]}}";
  static const uint8_t data[35] = {[16] = 1, [24] = 1, [28] = 2, 0,  0,
                                   0,        'a',      'b',      'c'};
  uint8_t file[8 + sizeof header - 1 + sizeof data] = {sizeof header - 1};
  memcpy(file + 8, header, sizeof header - 1);
  memcpy(file + 8 + sizeof header - 1, data, sizeof data);
  snprintf(dir, sizeof dir, "%s/tidemill-fuzz-XXXXXX",
           access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
  if (!mkdtemp(dir)) abort();
  atexit(drop_dir);
  put("d", "", file, sizeof file);
}

static void read_safetensors(const uint8_t *p, size_t n) {
  char path[100];
  tm_err err = {0};
  tm_st_file *f;
  uint8_t some[16];
  uint32_t crc;
  put("x", "", p, n);
  snprintf(path, sizeof path, "%s/x", dir);
  if (tm_st_open(path, &f, &err)) {
    if (!err.msg[0]) abort();
    return;
  }
  for (size_t i = 0; i < tm_st_count(f); i++) {
    const tm_st_entry *e = tm_st_at(f, i);
    size_t len = e->end - e->begin < 16 ? (size_t)(e->end - e->begin) : 16;
    if (tm_st_find(f, e->name) != e || tm_st_read(f, e, 0, some, len, &err)) abort();
  }
  if (tm_st_crc(f, &crc, &err)) abort();
  tm_st_close(f);
}

static void put_sealed(const char *name, const uint8_t *p, size_t n) {
  char head[40];
  snprintf(head, sizeof head, "{\"crc32c\": \"%08" PRIx32 "\",\n", tm_crc32c(0, p, n));
  put(name, head, p, n);
}

static void read_checkpoint(const uint8_t *p, size_t n) {
  tm_err err = {0};
  tm_ckpt_reader *r;
  put_sealed("checkpoint.json", p, n);
  if (tm_ckpt_open(dir, &r, &err)) {
    if (!err.msg[0]) abort();
    return;
  }
  for (size_t i = 0; i < tm_ckpt_ntensor(r); i++) {
    const tm_ckpt_tensor *t = tm_ckpt_tensor_at(r, i);
    tm_tensor *x;
    tm_status s = tm_ckpt_read(r, t, 0, t->shape.rank ? t->shape.dim[0] : 1, &x, &err);
    if (s == TM_OK) tm_tensor_unref(x);
  }
  for (size_t i = 0; i < tm_ckpt_nvalue(r); i++)
    if (!tm_ckpt_value_at(r, i)->name) abort();
  tm_ckpt_close(r);
}

static void read_list(const uint8_t *p, size_t n) {
  tm_err err = {0};
  tm_ckpt_state s;
  put_sealed("checkpoint", p, n);
  if (tm_ckpt_state_read(dir, &s, &err) == TM_OK) tm_ckpt_state_release(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (!dir[0]) make_dir();
  if (size == 0) return 0;
  if (data[0] % 3 == 0) read_safetensors(data + 1, size - 1);
  if (data[0] % 3 == 1) read_checkpoint(data + 1, size - 1);
  if (data[0] % 3 == 2) read_list(data + 1, size - 1);
  return 0;
}
