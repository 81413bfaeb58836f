/* Messages of the control plane, TM_CONFIG, and states of iterators, from any bytes. */
#include <string.h>

#include "base/arena.h"
#include "cluster/control.h"
#include "cluster/save_wire.h"
#include "cluster/spec.h"
#include "cluster/term.h"
#include "data/source.h"
#include "ps/tokens.h"

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

/* What ps and chiefs say of snapshots, tokens and terms. */
static void fuzz_saves(const uint8_t *p, size_t n) {
  tm_arena a = TM_ARENA_INIT;
  tm_err err = {0};
  tm_snapshot_item *item;
  tm_token_list q = {0};
  tm_snapshot_job job = {0};
  tm_save_read rd;
  tm_term term;
  uint64_t id;
  int32_t count;
  (void)!tm_save_items_unpack(p, n, &a, &item, &count, &q, &err);
  (void)!tm_save_tokens_unpack(p, n, &a, &q, &err);
  (void)!tm_save_job_unpack(p, n, &a, &id, &job, &err);
  (void)!tm_save_read_unpack(p, n, &rd, &err);
  (void)!tm_term_unpack(p, n, &term, &err);
  tm_arena_release(&a);
}

/* What a ps remembers of UPDATEs; afterwards it still tells one from the next. */
static void fuzz_tokens(const uint8_t *p, size_t n) {
  tm_tokens *t;
  tm_unpacker r;
  tm_token_use use;
  tm_err err = {0};
  const tm_ps_token token = {.incarnation = 1, .closure = 7, .lowest = 7};
  if (tm_tokens_new(&t)) return;
  tm_unpack_init(&r, p, n);
  tm_tokens_unpack(t, &r);
  for (int i = 0; i < 2; i++)
    if (tm_tokens_take(t, &token, &use, &err) == TM_OK) tm_tokens_end(t, &use, true);
  tm_tokens_refuse(t, 9);
  tm_tokens_free(t);
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
  tm_term term;
  (void)!tm_term_unpack(p, n, &term, &err);
  char why[TM_LEAVING_TEXT];
  const tm_message leaving = {.f = {.meta_bytes = (uint32_t)n}, .meta = p};
  if (tm_leaving_unpack(&leaving, why, &err) == TM_OK && strlen(why) >= sizeof why)
    return -1;
  fuzz_saves(p, n);
  fuzz_tokens(p, n);
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
