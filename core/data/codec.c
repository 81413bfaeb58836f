#include "data/codec.h"

#include "base/mem.h"
#include "data/node.h"

/*
 * Design.  [version, node]; node = [code, parameters, [inputs...]].  Each class reads
 * and writes its parameters as one value and makes the dataset through its public
 * constructor, so a description from outside passes the same checks as one made
 * here.
 *
 * Invariants:
 *   (1) Reading recurses at most TM_DATA_DEPTH deep and makes at most TM_DATA_NODES
 *       nodes.
 *   (2) A malformed parameter fails before a constructor's result is used: the
 *       reader's status is looked at after each node.
 */
enum { CODEC_VERSION = 1 };

extern const tm_data_class tm_class_slices, tm_class_tensors, tm_class_range,
    tm_class_text, tm_class_csv, tm_class_idx, tm_class_map, tm_class_filter,
    tm_class_shuffle, tm_class_batch, tm_class_unbatch, tm_class_prefetch, tm_class_rep,
    tm_class_take, tm_class_skip, tm_class_shard, tm_class_cache, tm_class_zip,
    tm_class_concatenate, tm_class_enumerate;

const tm_data_class *const tm_data_classes[] = {
    &tm_class_slices,  &tm_class_tensors, &tm_class_range,       &tm_class_text,
    &tm_class_csv,     &tm_class_idx,     &tm_class_map,         &tm_class_filter,
    &tm_class_shuffle, &tm_class_batch,   &tm_class_unbatch,     &tm_class_prefetch,
    &tm_class_rep,     &tm_class_take,    &tm_class_skip,        &tm_class_shard,
    &tm_class_cache,   &tm_class_zip,     &tm_class_concatenate, &tm_class_enumerate,
};
const int32_t tm_data_nclasses =
    (int32_t)(sizeof tm_data_classes / sizeof tm_data_classes[0]);

static const tm_data_class *class_of_code(int64_t code) {
  for (int32_t i = 0; i < tm_data_nclasses; i++)
    if (tm_data_classes[i]->code == code) return tm_data_classes[i];
  return NULL;
}

static void node_pack(const tm_dataset *ds, tm_packer *w, tm_err *err) {
  tm_pack_array(w, 3);
  tm_pack_int(w, ds->k->code);
  if (ds->k->pack)
    ds->k->pack(ds, w, err);
  else
    tm_pack_nil(w);
  tm_pack_array(w, (uint32_t)ds->nin);
  for (int32_t i = 0; i < ds->nin && w->status == TM_OK; i++)
    node_pack(ds->in[i], w, err);
}

tm_status tm_dataset_pack(const tm_dataset *ds, tm_buf *out, tm_err *err) {
  tm_packer w;
  size_t len = out->len;
  tm_err_clear(err);
  tm_pack_init(&w, out);
  tm_pack_array(&w, 2);
  tm_pack_int(&w, CODEC_VERSION);
  node_pack(ds, &w, err);
  if (w.status == TM_OK) return TM_OK;
  out->len = len;
  if (w.status == TM_EEXHAUSTED)
    return tm_fail(err, w.status,
                   "dataset: its description is larger than %llu bytes; read large "
                   "data from files",
                   (unsigned long long)out->max);
  return tm_fail(err, w.status, "dataset: cannot be packed (%s)",
                 tm_status_name(w.status));
}

struct reader {
  tm_unpacker *r;
  int32_t nodes;
};

static tm_status node_malformed(const tm_unpacker *r, tm_err *err) {
  return tm_fail(err, TM_EINVAL, "dataset: malformed description (%s)",
                 r->reason ? r->reason : "bad node");
}

static tm_status node_unpack(struct reader *d, int32_t depth, tm_dataset **out,
                             tm_err *err);

/* The parameters are before the inputs, but a constructor wants the inputs: read
 * the parameters with a reader of their own afterwards. */
static tm_status node_inputs(struct reader *d, const tm_data_class *k, int32_t depth,
                             tm_dataset **in, int32_t *nin, tm_err *err) {
  uint32_t lo = k->nin == TM_DATA_MANY ? 1 : (uint32_t)k->nin;
  uint32_t hi = k->nin == TM_DATA_MANY ? TM_DATA_INPUTS : (uint32_t)k->nin;
  int32_t n = (int32_t)tm_unpack_array(d->r, lo, hi);
  if (d->r->status != TM_OK) return node_malformed(d->r, err);
  for (*nin = 0; *nin < n; ++*nin) TM_TRY(node_unpack(d, depth + 1, &in[*nin], err));
  return TM_OK;
}

static tm_status node_make(struct reader *d, const tm_data_class *k, int32_t depth,
                           tm_dataset **in, tm_dataset **out, tm_err *err) {
  tm_unpacker params = *d->r;
  int32_t nin = 0;
  tm_unpack_skip(d->r);
  params.end = d->r->p;
  tm_status s = d->r->status == TM_OK ? node_inputs(d, k, depth, in, &nin, err)
                                      : node_malformed(d->r, err);
  if (s == TM_OK) {
    s = k->unpack(&params, in, nin, out, err);
    if (s == TM_OK && (params.status != TM_OK || params.p != params.end)) {
      tm_dataset_unref(*out);
      *out = NULL;
      s = node_malformed(&params, err);
    }
  }
  while (nin > 0) tm_dataset_unref(in[--nin]);
  return s;
}

static tm_status node_unpack(struct reader *d, int32_t depth, tm_dataset **out,
                             tm_err *err) {
  *out = NULL;
  if (depth > TM_DATA_DEPTH || ++d->nodes > TM_DATA_NODES)
    return tm_fail(err, TM_EINVAL, "dataset: the description nests too deep");
  tm_unpack_array(d->r, 3, 3);
  const tm_data_class *k = class_of_code(tm_unpack_int(d->r));
  if (d->r->status != TM_OK) return node_malformed(d->r, err);
  if (!k)
    return tm_fail(err, TM_EINVAL, "dataset: unknown kind; made by a newer version?");
  if (k->nin != TM_DATA_MANY) {
    tm_dataset *in[2] = {NULL, NULL};
    return node_make(d, k, depth, in, out, err);
  }
  tm_dataset **in = tm_calloc(TM_DATA_INPUTS, sizeof *in);
  if (!in) return tm_nomem(err, "a dataset");
  tm_status s = node_make(d, k, depth, in, out, err);
  tm_free(in, TM_DATA_INPUTS * sizeof *in);
  return s;
}

tm_status tm_dataset_unpack(const void *p, size_t n, tm_dataset **out, tm_err *err) {
  tm_unpacker r;
  struct reader d = {&r, 0};
  *out = NULL;
  tm_unpack_init(&r, p, n);
  tm_unpack_array(&r, 2, 2);
  int64_t version = tm_unpack_int(&r);
  if (r.status != TM_OK) return node_malformed(&r, err);
  if (version != CODEC_VERSION)
    return tm_fail(err, TM_EINVAL, "dataset: version %lld of the description, not %d",
                   (long long)version, CODEC_VERSION);
  TM_TRY(node_unpack(&d, 1, out, err));
  if (tm_unpack_end(&r, err) == TM_OK) return TM_OK;
  tm_dataset_unref(*out);
  *out = NULL;
  return TM_EINVAL;
}
