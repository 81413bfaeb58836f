/*
 * Any bytes are read to their end or give an error; what can be read is written again
 * and read back the same.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/pack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { DEEPEST = 40 };

/* Copy one value from r to w. */
static void copy_value(tm_unpacker *r, tm_packer *w, int depth) {
  size_t len = 0;
  uint32_t n;
  if (depth > DEEPEST) {
    tm_unpack_fail(r, "too deep");
    return;
  }
  switch (tm_unpack_peek(r)) {
    case TM_PACK_NIL:
      if (tm_unpack_nil(r)) tm_pack_nil(w);
      break;
    case TM_PACK_BOOL:
      tm_pack_bool(w, tm_unpack_bool(r));
      break;
    case TM_PACK_INT: {
      tm_unpacker again = *r;
      uint64_t u = tm_unpack_uint(&again);
      if (again.status == TM_OK) {
        *r = again;
        tm_pack_uint(w, u);
      } else {
        tm_pack_int(w, tm_unpack_int(r));
      }
      break;
    }
    case TM_PACK_DOUBLE:
      tm_pack_double(w, tm_unpack_double(r));
      break;
    case TM_PACK_STR: {
      const char *s = tm_unpack_str(r, SIZE_MAX, &len);
      if (s) tm_pack_str(w, s, len);
      break;
    }
    case TM_PACK_BIN: {
      const void *p = tm_unpack_bin(r, SIZE_MAX, &len);
      if (p) tm_pack_bin(w, p, len);
      break;
    }
    case TM_PACK_ARRAY:
      n = tm_unpack_array(r, 0, UINT32_MAX);
      tm_pack_array(w, n);
      for (uint32_t i = 0; i < n && r->status == TM_OK; i++)
        copy_value(r, w, depth + 1);
      break;
    case TM_PACK_MAP:
      n = tm_unpack_map(r, 0, UINT32_MAX);
      tm_pack_map(w, n);
      for (uint64_t i = 0; i < 2 * (uint64_t)n && r->status == TM_OK; i++)
        copy_value(r, w, depth + 1);
      break;
    case TM_PACK_EXT:
    case TM_PACK_NONE:
      tm_unpack_fail(r, "no value");
  }
}

static tm_status copy_all(const uint8_t *data, size_t size, tm_buf *out) {
  tm_unpacker r;
  tm_packer w;
  tm_unpack_init(&r, data, size);
  tm_pack_init(&w, out);
  copy_value(&r, &w, 0);
  tm_status s = tm_unpack_end(&r, NULL);
  return s != TM_OK ? s : w.status;
}

static void must(int true_) {
  if (!true_) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  tm_unpacker r;
  tm_err err = {0};
  tm_err_clear(&err);
  tm_unpack_init(&r, data, size);
  tm_unpack_skip(&r);
  tm_status skipped = tm_unpack_end(&r, &err);
  must(skipped == TM_OK || (skipped == TM_EINVAL && err.msg[0]));

  tm_buf once = TM_BUF_INIT(1 << 20), twice = TM_BUF_INIT(1 << 20);
  if (copy_all(data, size, &once) == TM_OK) {
    must(copy_all(once.data, once.len, &twice) == TM_OK);
    must(once.len == twice.len && memcmp(once.data, twice.data, once.len) == 0);
  }
  tm_buf_release(&once);
  tm_buf_release(&twice);
  must(tm_mem_live() == 0);
  return 0;
}
