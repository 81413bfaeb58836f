/* The decoder of dataset descriptions: what it takes is packed again to the same
 * dataset, and an iterator of it can be made and dropped. */
#include <stdint.h>

#include "base/mem.h"
#include "data/codec.h"
#include "data/iterator.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(tm_dataset *ds) {
  tm_buf b = TM_BUF_INIT((size_t)1 << 28);
  tm_dataset *again = NULL;
  tm_iter_env env = {2, 4, 1, 0, NULL};
  tm_iter *it;
  tm_err err = {0};
  if (tm_dataset_pack(ds, &b, &err) == TM_OK) {
    if (tm_dataset_unpack(b.data, b.len, &again, &err)) __builtin_trap();
    if (tm_dataset_width(again) != tm_dataset_width(ds)) __builtin_trap();
    if (tm_dataset_cardinality(again) != tm_dataset_cardinality(ds)) __builtin_trap();
    tm_dataset_unref(again);
  }
  tm_buf_release(&b);
  /* Not run: a description may name any file and any count. */
  if (tm_dataset_iterate(ds, &env, &it, &err) == TM_OK) tm_iter_free(it);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  tm_dataset *ds;
  tm_err err = {0};
  if (tm_dataset_unpack(data, size, &ds, &err)) return 0;
  use(ds);
  tm_dataset_unref(ds);
  return 0;
}
