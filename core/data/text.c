#include "base/mem.h"
#include "data/node.h"
#include "data/reader.h"
#include "data/source.h"

/*
 * Design.  text_line reads TEXT_ROWS lines at a time into a block of strings.
 *
 * Invariants:
 *   (1) An error is kept until the rows before it were given.
 *   (2) Lines of one block are of one file or of neighbours; the cursor holds at
 *       most one file open.
 */
enum { TEXT_ROWS = 64 };

struct text {
  tm_dataset ds;
  tm_files files;
};

struct text_cursor {
  tm_cursor c;
  tm_reader *r;
  size_t file; /* next to open */
  tm_block *block;
  int64_t i;
  tm_buf bytes;
  size_t end[TEXT_ROWS]; /* of each line in bytes */
  tm_status failed;      /* to give after the block; TM_OK: none */
  tm_err err;
};

static void text_release(tm_dataset *ds) {
  tm_files_release(&((struct text *)ds)->files);
}

static void text_pack(const tm_dataset *ds, tm_packer *w, tm_err *err) {
  (void)err;
  tm_files_pack(&((const struct text *)ds)->files, w);
}

static tm_status text_make(tm_files *f, tm_dataset **out, tm_err *err);

static tm_status text_unpack(tm_unpacker *r, tm_dataset **in, int32_t nin,
                             tm_dataset **out, tm_err *err) {
  tm_files f;
  (void)in, (void)nin;
  TM_TRY(tm_files_unpack(r, &f, err));
  return text_make(&f, out, err);
}

/* The next line of this file or of the next one. */
static tm_status text_line(struct text_cursor *k, char **p, size_t *n, tm_err *err) {
  const tm_files *f = &((const struct text *)k->c.ds)->files;
  for (;;) {
    if (!k->r) {
      if (k->file == f->n) return TM_ERANGE;
      TM_TRY(tm_reader_open(f->name[k->file], f->compression, &k->r, err));
      k->file++;
    }
    tm_status s = tm_reader_line(k->r, p, n, err);
    if (s != TM_ERANGE) return s;
    tm_reader_close(k->r);
    k->r = NULL;
  }
}

/* Up to TEXT_ROWS lines into bytes and end; what stops it goes to failed, err. */
static int64_t text_collect(struct text_cursor *k) {
  int64_t n = 0;
  tm_status s = TM_OK;
  tm_buf_clear(&k->bytes);
  for (; n < TEXT_ROWS; n++) {
    char *p;
    size_t len;
    s = text_line(k, &p, &len, &k->err);
    if (s == TM_OK && tm_buf_put(&k->bytes, p, len) != TM_OK)
      s = tm_nomem(&k->err, "text_line");
    if (s != TM_OK) break;
    k->end[n] = k->bytes.len;
  }
  k->failed = s == TM_ERANGE ? TM_OK : s;
  return n;
}

static tm_status text_fill(struct text_cursor *k, tm_err *err) {
  int64_t n = text_collect(k);
  if (n == 0) return TM_OK;
  tm_str line[TEXT_ROWS];
  size_t at = 0;
  for (int64_t i = 0; i < n; at = k->end[i++]) {
    line[i] = (tm_str){NULL, 0}; /* bytes.data may be NULL: all are empty */
    if (k->end[i] > at)
      line[i] = (tm_str){(const char *)k->bytes.data + at, k->end[i] - at};
  }
  tm_block *b = NULL;
  tm_shape shape = tm_shape_of(1, &n);
  tm_status s = tm_block_new(1, n, &b);
  s = s == TM_OK ? tm_tensor_strings(&shape, line, &b->t[0], err)
                 : tm_nomem(err, "text_line");
  if (s != TM_OK) {
    tm_block_unref(b);
    return s;
  }
  k->block = b;
  k->i = 0;
  return TM_OK;
}

static tm_status text_next(tm_cursor *c, tm_row *out, tm_err *err) {
  struct text_cursor *k = (struct text_cursor *)c;
  if (k->block && k->i == k->block->nrows) {
    tm_block_unref(k->block);
    k->block = NULL;
  }
  if (!k->block && k->failed == TM_OK) TM_TRY(text_fill(k, err));
  if (k->block) {
    *out = tm_row_of(k->block, k->i++);
    return TM_OK;
  }
  if (k->failed == TM_OK) return TM_ERANGE;
  tm_status s = k->failed;
  k->failed = TM_OK;
  if (err) *err = k->err;
  return s;
}

static tm_status text_pass(tm_cursor *c, int64_t n, int64_t *done, tm_err *err) {
  struct text_cursor *k = (struct text_cursor *)c;
  char *p;
  size_t len;
  if (k->block) {
    int64_t left = k->block->nrows - k->i;
    *done = n < left ? n : left;
    k->i += *done;
  }
  for (; *done < n; ++*done) {
    if (tm_cancelled(c->cancel))
      return tm_fail(err, TM_ECANCELLED, "text_line: cancelled");
    TM_TRY(text_line(k, &p, &len, err));
  }
  return TM_OK;
}

static void text_close(tm_cursor *c) {
  struct text_cursor *k = (struct text_cursor *)c;
  tm_reader_close(k->r);
  k->r = NULL;
  tm_block_unref(k->block);
  k->block = NULL;
  tm_buf_release(&k->bytes);
}

static void text_reset(tm_cursor *c, bool fresh) {
  struct text_cursor *k = (struct text_cursor *)c;
  (void)fresh;
  text_close(c);
  k->file = 0;
  k->failed = TM_OK;
}

static tm_status text_open(tm_cursor *c, tm_err *err) {
  struct text_cursor *k = (struct text_cursor *)c;
  (void)err;
  tm_err_clear(&k->err);
  k->bytes.max = (size_t)TEXT_ROWS * TM_READER_LINE;
  return TM_OK;
}

const tm_data_class tm_class_text = {
    .name = "text_line",
    .code = 4,
    .size = sizeof(struct text),
    .cursor_size = sizeof(struct text_cursor),
    .release = text_release,
    .pack = text_pack,
    .unpack = text_unpack,
    .open = text_open,
    .next = text_next,
    .pass = text_pass,
    .reset = text_reset,
    .close = text_close,
};

/* Takes over *f, also on failure. */
static tm_status text_make(tm_files *f, tm_dataset **out, tm_err *err) {
  tm_status s = tm_dataset_make(&tm_class_text, NULL, 0, 1, out, err);
  if (s != TM_OK) {
    tm_files_release(f);
    return s;
  }
  ((struct text *)*out)->files = *f;
  (*out)->types[0] = (tm_type){TM_STRING, tm_shape_scalar()};
  (*out)->card = TM_DATA_UNKNOWN;
  return TM_OK;
}

tm_status tm_data_text_line(const tm_text_options *o, tm_dataset **out, tm_err *err) {
  tm_files f;
  *out = NULL;
  TM_TRY(
      tm_files_init(&f, o->files, o->nfiles, o->compression, true, "text_line", err));
  return text_make(&f, out, err);
}
