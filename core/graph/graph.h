/*
 * graph.h - a traced function: nodes in program order.
 *
 * Node i may use only outputs of nodes before it.  Program order of stateful nodes
 * is their order of effect.  Arguments are nodes of the op "arg"; an argument is a
 * tensor or an iterator; constants are nodes of the op "const".
 *
 * Ownership: refcounted; a finished graph is immutable.  Threads: any, read-only.
 */
#ifndef TM_GRAPH_GRAPH_H
#define TM_GRAPH_GRAPH_H

#include "base/arena.h"
#include "graph/op.h"

typedef struct tm_ref {
  int32_t node;
  int32_t out;
} tm_ref;

typedef struct tm_node {
  const tm_op *op;
  tm_attrs attrs;
  int32_t nin, nout;
  tm_ref *in;     /* nin */
  tm_type *out;   /* nout */
  uint64_t place; /* identity for random numbers: stays through passes */
} tm_node;

/* One argument: a tensor, or an iterator whose elements are `elem`. */
typedef struct tm_arg {
  int32_t node;
  bool iterator;
  int32_t nelem;
  tm_type *elem;
} tm_arg;

typedef struct tm_graph {
  atomic_int refs;
  char name[64];
  tm_arena arena; /* in, out, elem arrays */
  int32_t nnode, cap;
  tm_node *node;
  int32_t narg;
  tm_arg *arg;
  int32_t nout;
  tm_ref *out;
  uint64_t hash[2]; /* content, set by tm_graph_finish */
  bool optimized;   /* the passes ran */
} tm_graph;

enum { TM_MAX_NODES = 1 << 20 };

TM_CHECKED tm_status tm_graph_new(const char *name, tm_graph **out);
tm_graph *tm_graph_ref(tm_graph *g);
void tm_graph_unref(tm_graph *g); /* g may be NULL */

/* Building: attrs are copied; types come from infer. */
TM_CHECKED tm_status tm_graph_add(tm_graph *g, const tm_op *op, const tm_ref *in,
                                  int32_t nin, const tm_attrs *attrs, int32_t *node,
                                  tm_err *err);
TM_CHECKED tm_status tm_graph_add_arg(tm_graph *g, const tm_type *type, int32_t *node);
TM_CHECKED tm_status tm_graph_add_iterator(tm_graph *g, const tm_type *elem, int32_t n,
                                           int32_t *node);
TM_CHECKED tm_status tm_graph_add_const(tm_graph *g, tm_tensor *t, int32_t *node);
TM_CHECKED tm_status tm_graph_finish(tm_graph *g, const tm_ref *out, int32_t nout);

/* Types of an iterator_next node: [dtype, rank, dims...] an element. */
TM_CHECKED tm_status tm_attr_set_types(tm_attr *a, const tm_type *t, int32_t n);
TM_CHECKED tm_status tm_attr_types(const tm_attr *a, tm_type *t, int32_t max,
                                   int32_t *n, tm_err *err);

const tm_type *tm_graph_type(const tm_graph *g, tm_ref r);
/* Variables that the graph (sub-graphs included) touches; *uids is the caller's to
 * tm_free (n * 8 bytes). */
TM_CHECKED tm_status tm_graph_variables(const tm_graph *g, uint64_t **uids, size_t *n);

/* Readable listing, one line a node. */
TM_CHECKED tm_status tm_graph_text(const tm_graph *g, tm_buf *out);

/* --- passes (graph/pass.c): a new graph with constants folded, equal nodes merged,
 * nodes without effect dropped --- */
TM_CHECKED tm_status tm_graph_optimize(tm_graph *g, tm_graph **out, tm_err *err);

/* --- codec (graph/codec.c): MessagePack.  Decoding checks ops, references, attrs,
 * re-infers every type, and bounds nodes (1 M), nesting (16) and bytes --- */
TM_CHECKED tm_status tm_graph_pack(const tm_graph *g, tm_buf *out);
TM_CHECKED tm_status tm_graph_unpack(const void *p, size_t n, tm_graph **out,
                                     tm_err *err);
/* The same where variables have other uids than when it was packed: uid() gives the
 * one of each; 0, and it is TM_EINVAL, for one that the graph may not touch. */
TM_CHECKED tm_status tm_graph_unpack_as(const void *p, size_t n,
                                        uint64_t (*uid)(void *ud, uint64_t was),
                                        void *ud, tm_graph **out, tm_err *err);

#endif
