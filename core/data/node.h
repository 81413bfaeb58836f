/*
 * node.h - inside of the data layer: what every kind of dataset provides.
 *
 * A kind is a tm_data_class: a struct that begins with tm_dataset for the
 * description, one that begins with tm_cursor for a position in it, and functions.
 * An iterator is a tree of cursors, one a dataset node.
 *
 *     static tm_status take_next(tm_cursor *c, tm_row *out, tm_err *err) {
 *       struct take_cursor *t = (struct take_cursor *)c;
 *       if (t->given == ((const struct take *)c->ds)->n) return TM_ERANGE;
 *       TM_TRY(tm_cursor_next(c->in[0], out, err));
 *       ...
 *
 * Ownership: a dataset owns its inputs, a cursor its input cursors.
 * Threads:   a cursor belongs to one thread at a time.
 */
#ifndef TM_DATA_NODE_H
#define TM_DATA_NODE_H

#include "base/cancel.h"
#include "base/pack.h"
#include "data/block.h"
#include "data/dataset.h"
#include "data/iterator.h"

typedef struct tm_cursor tm_cursor;
typedef struct tm_data_class tm_data_class;

enum { TM_DATA_NODES = 4096, TM_DATA_INPUTS = 256 };
enum { TM_DATA_GRAPH_BYTES = 1 << 28 }; /* of a packed graph */
enum { TM_DATA_MANY = -1 };             /* nin of a class: 1..TM_DATA_INPUTS */

struct tm_dataset {
  atomic_int refs;
  const tm_data_class *k;
  int32_t depth; /* of the tree, 1.. TM_DATA_DEPTH */
  int32_t nodes; /* in the tree, 1..TM_DATA_NODES */
  int32_t width;
  int32_t nin;
  tm_type *types;  /* width */
  tm_dataset **in; /* nin references */
  int64_t card;    /* cardinality */
};

/* What the cursors of one iterator share. */
typedef struct tm_cursor_env {
  tm_iter_env env;         /* env.epoch grows with tm_iter_reset */
  uint64_t base;           /* seed and worker mixed */
  uint32_t shuffles, maps; /* cursors made so far that draw numbers */
  bool sparse; /* most elements are passed over: prefetch makes none ahead */
} tm_cursor_env;

/* An iterator: a tree of cursors shaped like the dataset, and what they share. */
struct tm_iter {
  tm_dataset *ds;
  tm_cursor_env env;
  tm_cursor *root;
  tm_iter_place place; /* what was given */
  bool behind;         /* root is still at the start */
  /* Of tm_iter_element: */
  int64_t at; /* the number of the element that comes next; -1: not known */
  bool ended; /* this epoch has `end` elements */
  int64_t end;
};

struct tm_cursor {
  const tm_dataset *ds;
  tm_cursor_env *env;
  tm_cancel *cancel; /* the user's, or that of the prefetch above; may be NULL */
  tm_cursor **in;    /* ds->nin */
};

struct tm_data_class {
  const char *name; /* as in api.md */
  int32_t code;     /* on the wire, never changes */
  int32_t nin;      /* inputs, or TM_DATA_MANY */
  bool same;        /* elements are those of the input: names stay */
  bool silent;      /* elements and order too: a state of an iterator does not tell */
  size_t size;      /* of the description */
  size_t cursor_size;
  void (*release)(tm_dataset *ds); /* what is not in tm_dataset; may be NULL */
  const char *(*name_of)(const tm_dataset *ds, int32_t i); /* may be NULL */
  /* The parameters, and making it anew from them (*in: nin inputs). */
  void (*pack)(const tm_dataset *ds, tm_packer *w, tm_err *err); /* may be NULL */
  tm_status (*unpack)(tm_unpacker *r, tm_dataset **in, int32_t nin, tm_dataset **out,
                      tm_err *err);
  /* Cursor: memory is zeroed, inputs are open.  open and close may be NULL. */
  tm_status (*open)(tm_cursor *c, tm_err *err);
  /* One element, TM_ERANGE at the end and every time after. */
  tm_status (*next)(tm_cursor *c, tm_row *out, tm_err *err);
  /* Move over up to n >= 1 elements; *done: how many.  TM_OK: all n.  TM_ERANGE: the
   * data ended before.  Another error ends it too, then the cursor is only good for
   * closing.  Functions need not run: only data that gave no error before are passed.
   * NULL: `next`, n times. */
  tm_status (*pass)(tm_cursor *c, int64_t n, int64_t *done, tm_err *err);
  /* Before the first element again, inputs are the kind's to reset.  fresh: a new
   * epoch of the iterator, else one more repetition. */
  void (*reset)(tm_cursor *c, bool fresh);
  void (*close)(tm_cursor *c); /* called before the inputs close */
  /* Tells datasets apart whose elements are others; NULL: what pack writes. */
  uint64_t (*mark)(const tm_dataset *ds);
  /* Its elements depend on the index of the worker; NULL: they do not. */
  bool (*by_worker)(const tm_dataset *ds);
};

/* All classes, in order of code; codec and tests walk it. */
extern const tm_data_class *const tm_data_classes[];
extern const int32_t tm_data_nclasses;

/* A zeroed description with its inputs (new references) and room for types.
 * TM_EINVAL: too deep, too many nodes, or too wide. */
TM_CHECKED tm_status tm_dataset_make(const tm_data_class *k, tm_dataset *const *in,
                                     int32_t nin, int32_t width, tm_dataset **out,
                                     tm_err *err);
/* The same for a transform that keeps the types and cardinality of its input. */
TM_CHECKED tm_status tm_dataset_like(const tm_data_class *k, tm_dataset *in,
                                     tm_dataset **out, tm_err *err);

/* A graph that a dataset may run: its arguments have these n types, it has outputs,
 * and no op of it, branches and loops included, touches variables or iterators. */
TM_CHECKED tm_status tm_data_graph_check(const tm_graph *g, const tm_type *types,
                                         int32_t n, const char *who, tm_err *err);
/* A graph as a bin. */
void tm_data_pack_graph(tm_packer *w, const tm_graph *g);
TM_CHECKED tm_status tm_data_unpack_graph(tm_unpacker *r, tm_graph **out, tm_err *err);

/* New cursors, at the start of the epoch. */
TM_CHECKED tm_status tm_iter_fresh(tm_iter *it, tm_err *err);
uint64_t tm_iter_base(const tm_iter_env *env); /* seed and worker mixed */
TM_CHECKED tm_status tm_cursor_new(const tm_dataset *ds, tm_cursor_env *env,
                                   tm_cancel *cancel, tm_cursor **out, tm_err *err);
void tm_cursor_free(tm_cursor *c); /* c may be NULL */
void tm_cursor_reset(tm_cursor *c, bool fresh);

/* As `pass` of the class says, n >= 0. */
TM_CHECKED tm_status tm_cursor_pass(tm_cursor *c, int64_t n, int64_t *done,
                                    tm_err *err);
/* The same by next. */
TM_CHECKED tm_status tm_cursor_walk(tm_cursor *c, int64_t n, int64_t *done,
                                    tm_err *err);

static inline tm_status tm_cursor_next(tm_cursor *c, tm_row *out, tm_err *err) {
  return c->ds->k->next(c, out, err);
}

#endif
