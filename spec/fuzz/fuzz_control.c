/* Messages of the control plane, and TM_CONFIG, from any bytes. */
#include <string.h>

#include "cluster/control.h"
#include "cluster/spec.h"

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

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
  tm_err err = {0};
  tm_start start;
  tm_var_info *v;
  tm_cluster_spec *spec;
  if (tm_start_unpack(p, n, &start, &err) == TM_OK) tm_start_release(&start);
  if (tm_var_info_unpack(p, n, &v, &err) == TM_OK) tm_var_info_unref(v);
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
