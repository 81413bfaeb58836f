#include "ckpt/sealed.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/crc32c.h"
#include "ckpt/file.h"

/*
 * Design.  The first line has a fixed length, so the sum is taken over the text as it
 * stands and nobody has to agree on how JSON is spelled.
 */
static const char sealed_first[] = "{\"crc32c\": \"00000000\",\n";
enum { SEALED_FIRST = sizeof sealed_first - 1, SEALED_SUM = 12 };

static int sealed_dump(const char *p, size_t n, void *ud) {
  return tm_buf_put(ud, p, n) == TM_OK ? 0 : -1;
}

/* The object's text with its "{" replaced by the first line. */
static tm_status sealed_text(tm_buf *b, json_t *body, tm_err *err) {
  const size_t flags = JSON_COMPACT | JSON_REAL_PRECISION(17);
  char sum[9];
  if (tm_buf_put(b, sealed_first, SEALED_FIRST) ||
      json_dump_callback(body, sealed_dump, b, flags) || tm_buf_putc(b, '\n'))
    return tm_nomem(err, "a checkpoint's index");
  b->data[SEALED_FIRST] = ' ';
  uint32_t crc = tm_crc32c(0, b->data + SEALED_FIRST, b->len - SEALED_FIRST);
  snprintf(sum, sizeof sum, "%08" PRIx32, crc);
  memcpy(b->data + SEALED_SUM, sum, 8);
  return TM_OK;
}

tm_status tm_sealed_write(const char *dir, const char *name, json_t *body,
                          tm_err *err) {
  tm_buf b = TM_BUF_INIT(TM_SEALED_MAX);
  tm_status s = sealed_text(&b, body, err);
  if (s == TM_OK) s = tm_file_replace(dir, name, b.data, b.len, err);
  tm_buf_release(&b);
  return s;
}

static tm_status sealed_bad(const char *path, const char *what, tm_err *err) {
  return tm_fail(err, TM_EDATALOSS, "\"%.300s\" is damaged: %s", path, what);
}

static tm_status sealed_parse(const char *path, const tm_buf *b, json_t **out,
                              tm_err *err) {
  char sum[9];
  json_error_t why;
  if (b->len < SEALED_FIRST || memcmp(b->data, sealed_first, SEALED_SUM) != 0 ||
      memcmp(b->data + SEALED_SUM + 8, sealed_first + SEALED_SUM + 8,
             SEALED_FIRST - SEALED_SUM - 8) != 0)
    return sealed_bad(path, "it does not begin with its checksum", err);
  uint32_t crc = tm_crc32c(0, b->data + SEALED_FIRST, b->len - SEALED_FIRST);
  snprintf(sum, sizeof sum, "%08" PRIx32, crc);
  if (memcmp(sum, b->data + SEALED_SUM, 8) != 0)
    return sealed_bad(path, "its checksum is another", err);
  *out = json_loadb((const char *)b->data, b->len,
                    JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
  if (!*out) return sealed_bad(path, why.text, err);
  return TM_OK;
}

tm_status tm_sealed_read(const char *dir, const char *name, json_t **out, tm_err *err) {
  char path[TM_PATH_MAX];
  tm_buf b = TM_BUF_INIT(TM_SEALED_MAX);
  *out = NULL;
  TM_TRY(tm_path_join(path, dir, name, err));
  tm_status s = tm_file_read(path, TM_SEALED_MAX, &b, err);
  if (s == TM_OK) s = sealed_parse(path, &b, out, err);
  tm_buf_release(&b);
  return s;
}
