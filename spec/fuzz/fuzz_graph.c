/* The graph decoder, and what a task does with a decoded graph: optimise, place on
 * levels, print, pack again. */
#include <stdint.h>

#include "base/mem.h"
#include "graph/exec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(tm_graph *g) {
  tm_buf b = TM_BUF_INIT((size_t)1 << 24);
  tm_program *p;
  tm_err err = {0};
  uint64_t *uid;
  size_t n;
  if (tm_graph_text(g, &b) == TM_OK) tm_buf_clear(&b);
  if (tm_graph_pack(g, &b) == TM_OK) {
    tm_graph *again;
    if (tm_graph_unpack(b.data, b.len, &again, &err)) __builtin_trap();
    tm_graph_unref(again);
  }
  tm_buf_release(&b);
  if (tm_graph_variables(g, &uid, &n) == TM_OK) tm_free(uid, n * sizeof *uid);
  if (tm_program_new(g, &p, &err) == TM_OK) tm_program_unref(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  tm_graph *g;
  tm_err err = {0};
  if (tm_graph_unpack(data, size, &g, &err)) return 0;
  use(g);
  tm_graph_unref(g);
  return 0;
}
