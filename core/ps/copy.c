#include "ps/copy.h"

#include <string.h>

#include "base/mem.h"
#include "ps/shard.h"

/*
 * Design.  The elements and slots are READ as a worker reads them, so a copy is what a
 * READ at that moment gives.
 */

/* The number of the rule "slot" that has this name; -1: none. */
static int32_t copy_slot_number(const char *slot) {
  const tm_rule *rule = tm_rule_find("slot");
  for (int32_t k = 0; k < 10; k++) {
    const double hyper[TM_RULE_MAX_HYPER] = {0.0, (double)k};
    const char *name[TM_RULE_MAX_SLOTS];
    double start[TM_RULE_MAX_SLOTS];
    if (rule->slots(hyper, name, start) == 1 && strcmp(name[0], slot) == 0) return k;
  }
  return -1;
}

static tm_status copy_read(tm_store *s, tm_ps_read *rd, tm_err *err) {
  tm_ps_request rq = {.nrd = 1, .rd = rd};
  tm_status st = tm_store_handle(s, &rq);
  if (st && err) *err = rq.err;
  return st;
}

static tm_status copy_slots(tm_store *s, tm_shard *sh, tm_shard_copy *out,
                            tm_err *err) {
  uint64_t n = tm_shard_count_slots(sh);
  if (n == 0) return TM_OK;
  out->slot = tm_calloc((size_t)n, sizeof *out->slot);
  if (!out->slot) return tm_nomem(err, "a copy of a shard");
  out->nslot = (int32_t)n;
  int32_t i = 0;
  for (tm_slot *k = atomic_load(&sh->slots); k && i < out->nslot; k = k->next, i++) {
    tm_ps_read rd = {.kind = TM_PS_SLOT,
                     .uid = sh->uid,
                     .shard = sh->index,
                     .optimizer = k->optimizer,
                     .slot = k->name};
    out->slot[i].optimizer = k->optimizer;
    out->slot[i].number = copy_slot_number(k->name);
    TM_TRY(copy_read(s, &rd, err));
    out->slot[i].t = rd.out;
  }
  return TM_OK;
}

tm_status tm_shard_copy_take(tm_store *s, const tm_shard_key *key, tm_shard_copy *out,
                             tm_err *err) {
  memset(out, 0, sizeof *out);
  tm_shard *sh = tm_store_hold(s, key->uid, key->shard);
  if (!sh) return TM_ENOTFOUND;
  tm_ps_read rd = {.kind = TM_PS_DENSE, .uid = sh->uid, .shard = sh->index};
  out->spec = (tm_shard_spec){.uid = sh->uid,
                              .shard = sh->index,
                              .dtype = sh->dtype,
                              .shape = sh->shape,
                              .full_shape = sh->full_shape,
                              .user = sh->user,
                              .init = {.kind = "zeros"}};
  tm_status st = copy_read(s, &rd, err);
  out->value = rd.out;
  if (st == TM_OK) st = copy_slots(s, sh, out, err);
  tm_shard_unref(sh);
  if (st) tm_shard_copy_release(out);
  return st;
}

void tm_shard_copy_release(tm_shard_copy *c) {
  for (int32_t i = 0; c->slot && i < c->nslot; i++) tm_tensor_unref(c->slot[i].t);
  tm_free(c->slot, (size_t)c->nslot * sizeof *c->slot);
  tm_tensor_unref(c->value);
  memset(c, 0, sizeof *c);
}
