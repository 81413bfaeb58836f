/* Requests to a ps from any bytes: the first two say where the payload begins. */
#include <stdlib.h>
#include <string.h>

#include "cluster/ps_wire.h"
#include "cluster/save_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static tm_store *fuzz_store(void) {
  static tm_store *s;
  if (s) return s;
  if (tm_store_new("/job:ps/task:0", &s)) abort();
  for (uint64_t uid = 1; uid <= 3; uid++) {
    tm_shard_spec sp = {.uid = uid,
                        .dtype = uid == 3 ? TM_I64 : TM_F32,
                        .shape = {2, {4, 2}},
                        .full_shape = {2, {4, 2}},
                        .init = {.kind = "ones"}};
    if (tm_store_create(s, &sp, NULL)) abort();
  }
  return s;
}

static void fuzz_handle(tm_ps_request *rq, uint64_t rows_bytes) {
  if (rows_bytes > 1 << 20) return;
  uint8_t *rows = malloc(rows_bytes + 1), *at = rows;
  for (int32_t i = 0; i < rq->nrd; i++) {
    if (rq->rd[i].kind != TM_PS_ROWS) continue;
    rq->rd[i].dst.data = at;
    at += tm_frame_pad(tm_view_bytes(&rq->rd[i].dst));
  }
  tm_store_handle(fuzz_store(), rq);
  for (int32_t i = 0; i < rq->nrd; i++) tm_tensor_unref(rq->rd[i].out);
  free(rows);
}

/* What chief and ps tell each other of snapshots and checkpoints. */
static void fuzz_saving(const uint8_t *p, size_t n, tm_arena *a) {
  tm_err err = {0};
  tm_snapshot_item *item;
  tm_token_list q;
  tm_snapshot_job job;
  tm_save_read rd;
  tm_store_stats st;
  tm_ps_commit c;
  uint64_t id, closure[2] = {1, 2}, turns[2];
  int64_t there[3];
  int32_t nitem;
  tm_token_list two = {.n = 2, .closure = closure, .turns = turns};
  (void)!tm_save_items_unpack(p, n, a, &item, &nitem, &q, &err);
  (void)!tm_save_there_unpack(p, n, &id, there, 3, &two, &err);
  (void)!tm_save_job_unpack(p, n, a, &id, &job, &err);
  (void)!tm_save_answer_unpack(p, n, &job, &err);
  (void)!tm_save_read_unpack(p, n, &rd, &err);
  (void)!tm_ps_stats_unpack(p, n, &st, &err);
  (void)!tm_ps_commit_unpack(p, n, a, &c, &err);
  tm_ps_commit end;
  if (tm_ps_commit_unpack(p, n, a, &end, &err) == TM_OK) {
    (void)!tm_store_commit(fuzz_store(), &end, &err);
    tm_store_forget_tokens(fuzz_store()); /* rounds count from 1 again */
  }
  if (tm_save_tokens_unpack(p, n, a, &q, &err) == TM_OK)
    (void)!tm_store_add_tokens(fuzz_store(), &q, &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
  if (n < 2) return 0;
  size_t meta = (size_t)(p[0] | p[1] << 8), payload;
  p += 2;
  n -= 2;
  if (meta > n) meta = n;
  payload = (n - meta) & ~(size_t)63;
  void *copy = NULL;
  if (payload && posix_memalign(&copy, 64, payload)) return 0;
  if (payload) memcpy(copy, p + meta, payload);
  tm_arena a = TM_ARENA_INIT;
  tm_ps_request rq;
  tm_err err = {0};
  uint64_t rows_bytes;
  if (tm_ps_request_unpack(p, meta, copy, payload, &a, &rq, &rows_bytes, &err) == TM_OK)
    fuzz_handle(&rq, rows_bytes);
  tm_unpacker r;
  tm_shard_spec sp;
  tm_tensor *value;
  tm_unpack_init(&r, p, meta);
  uint64_t at = 0;
  if (tm_ps_spec_unpack(&r, copy, payload, &at, &sp, &value, &err) == TM_OK)
    tm_tensor_unref(value);
  fuzz_saving(p, meta, &a);
  tm_arena_release(&a);
  free(copy);
  return 0;
}
