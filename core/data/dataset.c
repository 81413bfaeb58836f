#include "data/dataset.h"

#include <string.h>

#include "base/mem.h"
#include "data/node.h"

/*
 * Design.  This file has what all kinds of datasets share; each kind is a class in
 * a file of its own (memory.c, map.c, shuffle.c, batch.c, flow.c, join.c,
 * prefetch.c, text.c, csv.c, idx.c).
 *
 * Invariants:
 *   (1) depth = 1 + the deepest input's, nodes = 1 + the sum of the inputs', both
 *       bounded, so recursion and the number of cursors are, also where one dataset
 *       is used twice.
 *   (2) A description never changes after its constructor returned it.
 */

tm_status tm_dataset_make(const tm_data_class *k, tm_dataset *const *in, int32_t nin,
                          int32_t width, tm_dataset **out, tm_err *err) {
  int32_t depth = 1, nodes = 1;
  *out = NULL;
  for (int32_t i = 0; i < nin; i++) {
    if (in[i]->depth >= depth) depth = in[i]->depth + 1;
    nodes += in[i]->nodes; /* nin and nodes are bounded: no overflow */
  }
  if (depth > TM_DATA_DEPTH || nodes > TM_DATA_NODES)
    return tm_fail(err, TM_EINVAL, "%s: more than %d transforms in a row or %d in all",
                   k->name, TM_DATA_DEPTH, TM_DATA_NODES);
  if (width < 1 || width > TM_DATA_WIDTH)
    return tm_fail(err, TM_EINVAL, "%s: an element has 1 to %d tensors, not %d",
                   k->name, TM_DATA_WIDTH, width);
  tm_dataset *ds = tm_calloc(1, k->size);
  if (!ds) return tm_nomem(err, k->name);
  atomic_init(&ds->refs, 1);
  ds->k = k;
  ds->depth = depth;
  ds->nodes = nodes;
  ds->width = width;
  ds->types = tm_calloc((size_t)width, sizeof *ds->types);
  ds->in = nin ? tm_calloc((size_t)nin, sizeof *ds->in) : NULL;
  if (ds->in)
    for (; ds->nin < nin; ds->nin++) ds->in[ds->nin] = tm_dataset_ref(in[ds->nin]);
  if (!ds->types || ds->nin < nin) {
    tm_dataset_unref(ds);
    return tm_nomem(err, k->name);
  }
  *out = ds;
  return TM_OK;
}

tm_status tm_dataset_like(const tm_data_class *k, tm_dataset *in, tm_dataset **out,
                          tm_err *err) {
  TM_TRY(tm_dataset_make(k, &in, 1, in->width, out, err));
  memcpy((*out)->types, in->types, (size_t)in->width * sizeof *in->types);
  (*out)->card = in->card;
  return TM_OK;
}

tm_dataset *tm_dataset_ref(tm_dataset *ds) {
  atomic_fetch_add_explicit(&ds->refs, 1, memory_order_relaxed);
  return ds;
}

void tm_dataset_unref(tm_dataset *ds) {
  if (!ds || atomic_fetch_sub_explicit(&ds->refs, 1, memory_order_acq_rel) != 1) return;
  if (ds->k->release) ds->k->release(ds);
  for (int32_t i = 0; i < ds->nin; i++) tm_dataset_unref(ds->in[i]);
  if (ds->nin) tm_free(ds->in, (size_t)ds->nin * sizeof *ds->in);
  tm_free(ds->types, (size_t)ds->width * sizeof *ds->types);
  tm_free(ds, ds->k->size);
}

int32_t tm_dataset_width(const tm_dataset *ds) { return ds->width; }

const tm_type *tm_dataset_types(const tm_dataset *ds) { return ds->types; }

int64_t tm_dataset_cardinality(const tm_dataset *ds) { return ds->card; }

const char *tm_dataset_name(const tm_dataset *ds, int32_t i) {
  while (ds->k->same) ds = ds->in[0];
  return ds->k->name_of && i >= 0 && i < ds->width ? ds->k->name_of(ds, i) : NULL;
}

bool tm_dataset_by_worker(const tm_dataset *ds) {
  if (ds->k->by_worker && ds->k->by_worker(ds)) return true;
  for (int32_t i = 0; i < ds->nin; i++)
    if (tm_dataset_by_worker(ds->in[i])) return true;
  return false;
}
