/* Messages of the control plane, TM_CONFIG, and states of iterators, from any bytes. */
#include <string.h>

#include "cluster/control.h"
#include "cluster/spec.h"
#include "data/source.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void fuzz_letter(const uint8_t *p, size_t n, bool closures) {
  tm_letter_in in;
  size_t meta = n / 2, bytes = (n - meta) & ~(size_t)63;
  tm_message m = {.f = {.meta_bytes = (uint32_t)meta, .payload_bytes = bytes},
                  .meta = p};
  if (bytes) {
    m.payload = tm_malloc_aligned(bytes);
    memcpy(m.payload, p + meta, bytes);
  }
  if (tm_letter_open(&in, &m)) return;
  tm_closure c;
  tm_completion d;
  uint64_t hash[2];
  if (closures) {
    tm_closure_take(&in, &c, hash);
    tm_closure_release(&c);
  } else {
    tm_completion_take(&in, &d);
    tm_completion_release(&d);
  }
  tm_letter_close(&in);
}

/* A state, and one whose beginning is right. */
static void fuzz_state(const uint8_t *p, size_t n) {
  static const char head[] = "tidemill iterator 1 seed=1 worker=0 epoch=0 ";
  const tm_iter_env env = {0, 1, 1, 0, NULL};
  tm_dataset *ds;
  tm_iter *it = NULL;
  tm_err err = {0};
  tm_buf b = TM_BUF_INIT(1 << 20);
  if (tm_data_range(0, 5, 1, &ds, NULL)) return;
  tm_status s = tm_dataset_iterate(ds, &env, &it, NULL);
  if (s == TM_OK) s = tm_buf_put(&b, head, sizeof head - 1);
  if (s == TM_OK) s = tm_buf_put(&b, p, n);
  if (s == TM_OK && tm_iter_restore(it, (const char *)p, n, &err) == TM_OK)
    (void)!tm_iter_settle(it, &err);
  if (s == TM_OK && tm_iter_restore(it, (const char *)b.data, b.len, &err) == TM_OK)
    (void)!tm_iter_settle(it, &err);
  tm_buf_release(&b);
  tm_iter_free(it);
  tm_dataset_unref(ds);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
  tm_err err = {0};
  tm_start start;
  tm_var_info *v;
  tm_cluster_spec *spec;
  if (tm_start_unpack(p, n, &start, &err) == TM_OK) tm_start_release(&start);
  if (tm_var_info_unpack(p, n, &v, &err) == TM_OK) tm_var_info_unref(v);
  tm_unpacker r;
  tm_unpack_init(&r, p, n);
  if (tm_var_info_take(&r, true, &v) == TM_OK) tm_var_info_unref(v);
  fuzz_state(p, n);
  char why[TM_LEAVING_TEXT];
  const tm_message leaving = {.f = {.meta_bytes = (uint32_t)n}, .meta = p};
  if (tm_leaving_unpack(&leaving, why, &err) == TM_OK && strlen(why) >= sizeof why)
    return -1;
  fuzz_letter(p, n, true);
  fuzz_letter(p, n, false);
  char *text = tm_malloc(n + 1);
  if (!text) return 0;
  if (n) memcpy(text, p, n);
  text[n] = '\0';
  if (tm_cluster_spec_parse("x", text, &spec, &err) == TM_OK)
    tm_cluster_spec_free(spec);
  tm_free(text, n + 1);
  return 0;
}
