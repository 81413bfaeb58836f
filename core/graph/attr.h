/*
 * attr.h - named, typed constants of a node.
 *
 * An op's signature text (op.h) declares its attributes; values are kept in the
 * declared order, so a kernel reads attribute i by position.
 *
 * Ownership: tm_attrs owns strings, lists, tensors and functions in it.
 * Threads:   read-only once the node exists.
 */
#ifndef TM_GRAPH_ATTR_H
#define TM_GRAPH_ATTR_H

#include "base/pack.h"
#include "tensor/tensor.h"

struct tm_graph;

typedef enum tm_attr_kind {
  TM_ATTR_NONE = 0, /* not given, no default */
  TM_ATTR_BOOL,
  TM_ATTR_INT,
  TM_ATTR_FLOAT,
  TM_ATTR_STR,
  TM_ATTR_DTYPE,
  TM_ATTR_AXIS,   /* one axis, 0-based, negative from the end */
  TM_ATTR_AXES,   /* list of axes */
  TM_ATTR_INTS,   /* list of ints */
  TM_ATTR_FLOATS, /* list of doubles */
  TM_ATTR_SHAPE,  /* list of sizes, -1 allowed where the op says so */
  TM_ATTR_TENSOR,
  TM_ATTR_FUNC /* a sub-graph */
} tm_attr_kind;

typedef struct tm_attr {
  tm_attr_kind kind; /* TM_ATTR_NONE when absent */
  int32_t n;         /* length of a list */
  union {
    bool b;
    int64_t i; /* INT, AXIS, DTYPE */
    double f;
    char *s;
    int64_t *is; /* AXES, INTS, SHAPE */
    double *fs;
    tm_tensor *t;
    struct tm_graph *g;
  } u;
} tm_attr;

enum { TM_MAX_ATTRS = 12 };

typedef struct tm_attrs {
  int32_t n;
  tm_attr a[TM_MAX_ATTRS];
} tm_attrs;

void tm_attrs_release(tm_attrs *a);
TM_CHECKED tm_status tm_attrs_copy(tm_attrs *dst, const tm_attrs *src);
bool tm_attrs_equal(const tm_attrs *a, const tm_attrs *b);
uint64_t tm_attrs_hash(const tm_attrs *a);

/* Setters copy; tensor and graph setters take a new reference. */
TM_CHECKED tm_status tm_attr_set_str(tm_attr *a, const char *s, size_t n);
TM_CHECKED tm_status tm_attr_set_ints(tm_attr *a, tm_attr_kind kind, const int64_t *v,
                                      int32_t n);
TM_CHECKED tm_status tm_attr_set_floats(tm_attr *a, const double *v, int32_t n);
void tm_attr_set_bool(tm_attr *a, bool b);
void tm_attr_set_int(tm_attr *a, tm_attr_kind kind, int64_t i); /* INT AXIS DTYPE */
void tm_attr_set_float(tm_attr *a, double f);
void tm_attr_set_tensor(tm_attr *a, tm_tensor *t);
void tm_attr_set_graph(tm_attr *a, struct tm_graph *g);

#endif
