#include <string.h>

#include "data/node.h"

/*
 * Design.  Transforms that put elements of several inputs together: zip,
 * concatenate; and enumerate, which puts a number before each.
 *
 * Invariant: after its end a cursor answers TM_ERANGE without asking its inputs.
 */
struct join_cursor {
  tm_cursor c;
  int64_t i; /* concatenate: input; else elements given */
  bool end;
};

static void join_reset(tm_cursor *c, bool fresh) {
  struct join_cursor *j = (struct join_cursor *)c;
  j->i = 0;
  j->end = false;
  for (int32_t i = 0; i < c->ds->nin; i++) tm_cursor_reset(c->in[i], fresh);
}

/* Tensors of r into b from k on. */
static tm_status join_put(tm_block *b, int32_t k, const tm_row *r, tm_err *err) {
  for (int32_t i = 0; i < r->b->width; i++)
    if (tm_row_tensor(r, i, &b->t[k + i]) != TM_OK) return tm_nomem(err, "an element");
  return TM_OK;
}

/* --- zip --- */
static tm_status zip_unpack(tm_unpacker *r, tm_dataset **in, int32_t nin,
                            tm_dataset **out, tm_err *err) {
  tm_unpack_nil(r);
  return tm_data_zip(in, nin, out, err);
}

/* Every input is asked, so that all stay in step when one fails; the first error
 * counts, an end before it. */
static tm_status zip_next(tm_cursor *c, tm_row *out, tm_err *err) {
  struct join_cursor *j = (struct join_cursor *)c;
  if (j->end) return TM_ERANGE;
  tm_block *b;
  if (tm_block_new(c->ds->width, TM_ROW_WHOLE, &b) != TM_OK)
    return tm_nomem(err, "zip");
  tm_status first = TM_OK;
  int32_t k = 0;
  for (int32_t i = 0; i < c->ds->nin && !j->end; i++) {
    tm_row r = {NULL, 0};
    tm_status s = tm_cursor_next(c->in[i], &r, first == TM_OK ? err : NULL);
    if (s == TM_OK) {
      s = join_put(b, k, &r, first == TM_OK ? err : NULL);
      k += r.b->width;
      tm_row_release(&r);
    }
    if (s == TM_ERANGE) j->end = true;
    if (first == TM_OK) first = s;
  }
  if (j->end) first = TM_ERANGE;
  if (first != TM_OK) {
    tm_block_unref(b);
    return first;
  }
  j->i++;
  *out = (tm_row){b, TM_ROW_WHOLE};
  return TM_OK;
}

/* To the end of the shortest; whom the end asks is left to next. */
static tm_status zip_pass(tm_cursor *c, int64_t n, int64_t *done, tm_err *err) {
  struct join_cursor *j = (struct join_cursor *)c;
  int64_t card = c->ds->card, left = card < 0 ? n : card - j->i, d;
  if (card == TM_DATA_UNKNOWN || left <= 0) return tm_cursor_walk(c, n, done, err);
  if (n < left) left = n;
  for (int32_t i = 0; i < c->ds->nin; i++)
    TM_TRY(tm_cursor_pass(c->in[i], left, &d, err));
  j->i += left;
  *done = left;
  return left < n ? tm_cursor_walk(c, 1, &d, err) : TM_OK;
}

const tm_data_class tm_class_zip = {
    .name = "zip",
    .code = 30,
    .nin = TM_DATA_MANY,
    .size = sizeof(tm_dataset),
    .cursor_size = sizeof(struct join_cursor),
    .unpack = zip_unpack,
    .next = zip_next,
    .pass = zip_pass,
    .reset = join_reset,
};

/* The smallest that is finite; any unknown makes it unknown. */
static int64_t zip_card(tm_dataset *const *in, int32_t n) {
  int64_t card = TM_DATA_INFINITE;
  for (int32_t i = 0; i < n; i++) {
    if (in[i]->card == TM_DATA_UNKNOWN) return TM_DATA_UNKNOWN;
    if (in[i]->card == TM_DATA_INFINITE) continue;
    if (card == TM_DATA_INFINITE || in[i]->card < card) card = in[i]->card;
  }
  return card;
}

tm_status tm_data_zip(tm_dataset *const *in, int32_t n, tm_dataset **out, tm_err *err) {
  *out = NULL;
  if (n < 1 || n > TM_DATA_INPUTS)
    return tm_fail(err, TM_EINVAL, "zip: takes 1 to %d datasets, not %d",
                   TM_DATA_INPUTS, n);
  int32_t width = 0;
  for (int32_t i = 0; i < n; i++) width += in[i]->width;
  TM_TRY(tm_dataset_make(&tm_class_zip, in, n, width, out, err));
  tm_type *t = (*out)->types;
  for (int32_t i = 0; i < n; i++) {
    memcpy(t, in[i]->types, (size_t)in[i]->width * sizeof *t);
    t += in[i]->width;
  }
  (*out)->card = zip_card(in, n);
  return TM_OK;
}

/* --- concatenate --- */
static tm_status concat_unpack(tm_unpacker *r, tm_dataset **in, int32_t nin,
                               tm_dataset **out, tm_err *err) {
  (void)nin;
  tm_unpack_nil(r);
  return tm_data_concatenate(in[0], in[1], out, err);
}

static tm_status concat_next(tm_cursor *c, tm_row *out, tm_err *err) {
  struct join_cursor *j = (struct join_cursor *)c;
  for (; j->i < c->ds->nin; j->i++) {
    tm_status s = tm_cursor_next(c->in[j->i], out, err);
    if (s != TM_ERANGE) return s;
  }
  return TM_ERANGE;
}

static tm_status concat_pass(tm_cursor *c, int64_t n, int64_t *done, tm_err *err) {
  struct join_cursor *j = (struct join_cursor *)c;
  for (*done = 0; j->i < c->ds->nin; j->i++) {
    int64_t d;
    tm_status s = tm_cursor_pass(c->in[j->i], n - *done, &d, err);
    *done += d;
    if (s != TM_ERANGE) return s;
  }
  return TM_ERANGE;
}

static const char *concat_name(const tm_dataset *ds, int32_t i) {
  return tm_dataset_name(ds->in[0], i);
}

const tm_data_class tm_class_concatenate = {
    .name = "concatenate",
    .code = 31,
    .nin = 2,
    .size = sizeof(tm_dataset),
    .cursor_size = sizeof(struct join_cursor),
    .name_of = concat_name,
    .unpack = concat_unpack,
    .next = concat_next,
    .pass = concat_pass,
    .reset = join_reset,
};

/* a's shape where both agree, else -1. */
static bool concat_shape(tm_shape *a, const tm_shape *b) {
  if (a->rank != b->rank) return false;
  for (int32_t i = 0; i < a->rank; i++)
    if (a->dim[i] != b->dim[i]) a->dim[i] = -1;
  return true;
}

static int64_t concat_card(int64_t a, int64_t b) {
  if (a == TM_DATA_INFINITE || b == TM_DATA_INFINITE) return TM_DATA_INFINITE;
  if (a == TM_DATA_UNKNOWN || b == TM_DATA_UNKNOWN || a > INT64_MAX - b)
    return TM_DATA_UNKNOWN;
  return a + b;
}

tm_status tm_data_concatenate(tm_dataset *a, tm_dataset *b, tm_dataset **out,
                              tm_err *err) {
  *out = NULL;
  if (a->width != b->width)
    return tm_fail(err, TM_EINVAL,
                   "concatenate: elements of %d and of %d tensors; both must have the "
                   "same structure",
                   a->width, b->width);
  tm_dataset *in[] = {a, b};
  TM_TRY(tm_dataset_make(&tm_class_concatenate, in, 2, a->width, out, err));
  for (int32_t i = 0; i < a->width; i++) {
    tm_type t = a->types[i];
    if (t.dtype != b->types[i].dtype || !concat_shape(&t.shape, &b->types[i].shape)) {
      char x[128], y[128];
      tm_dataset_unref(*out);
      *out = NULL;
      return tm_fail(err, TM_EINVAL,
                     "concatenate: component %d is %s %s in the first dataset and %s "
                     "%s in the second",
                     i + 1, tm_dtype_name(t.dtype),
                     tm_shape_text(&a->types[i].shape, x, sizeof x),
                     tm_dtype_name(b->types[i].dtype),
                     tm_shape_text(&b->types[i].shape, y, sizeof y));
    }
    (*out)->types[i] = t;
  }
  (*out)->card = concat_card(a->card, b->card);
  return TM_OK;
}

/* --- enumerate --- */
struct enumerate {
  tm_dataset ds;
  int64_t start;
};

static void enumerate_pack(const tm_dataset *ds, tm_packer *w, tm_err *err) {
  (void)err;
  tm_pack_int(w, ((const struct enumerate *)ds)->start);
}

static tm_status enumerate_unpack(tm_unpacker *r, tm_dataset **in, int32_t nin,
                                  tm_dataset **out, tm_err *err) {
  (void)nin;
  return tm_data_enumerate(in[0], tm_unpack_int(r), out, err);
}

static tm_status enumerate_next(tm_cursor *c, tm_row *out, tm_err *err) {
  struct join_cursor *j = (struct join_cursor *)c;
  tm_row r = {NULL, 0};
  TM_TRY(tm_cursor_next(c->in[0], &r, err));
  tm_block *b = NULL;
  uint64_t n = (uint64_t)((const struct enumerate *)c->ds)->start + (uint64_t)j->i;
  tm_status s = tm_block_new(c->ds->width, TM_ROW_WHOLE, &b);
  if (s == TM_OK) s = tm_tensor_i64((int64_t)n, &b->t[0]);
  if (s == TM_OK) s = join_put(b, 1, &r, err);
  tm_row_release(&r);
  if (s != TM_OK) {
    tm_block_unref(b);
    return tm_nomem(err, "enumerate");
  }
  j->i++;
  *out = (tm_row){b, TM_ROW_WHOLE};
  return TM_OK;
}

static tm_status enumerate_pass(tm_cursor *c, int64_t n, int64_t *done, tm_err *err) {
  tm_status s = tm_cursor_pass(c->in[0], n, done, err);
  ((struct join_cursor *)c)->i += *done;
  return s;
}

const tm_data_class tm_class_enumerate = {
    .name = "enumerate",
    .code = 32,
    .nin = 1,
    .size = sizeof(struct enumerate),
    .cursor_size = sizeof(struct join_cursor),
    .pack = enumerate_pack,
    .unpack = enumerate_unpack,
    .next = enumerate_next,
    .pass = enumerate_pass,
    .reset = join_reset,
};

tm_status tm_data_enumerate(tm_dataset *in, int64_t start, tm_dataset **out,
                            tm_err *err) {
  TM_TRY(tm_dataset_make(&tm_class_enumerate, &in, 1, in->width + 1, out, err));
  struct enumerate *e = (struct enumerate *)*out;
  e->start = start;
  e->ds.types[0] = (tm_type){TM_I64, tm_shape_scalar()};
  memcpy(e->ds.types + 1, in->types, (size_t)in->width * sizeof *in->types);
  e->ds.card = in->card;
  return TM_OK;
}
