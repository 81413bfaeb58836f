/*
 * op.h - the op table: everything about an op in one entry.
 *
 * Signature text: inputs, then attributes in declared order (C reads them by that
 * position; Lua fills them by position or by name).
 *
 *     "x"                                   one input
 *     "a, b"                                two inputs
 *     "xs..."                               a list of at least one input
 *     "x, bias?"                            the last input may be missing
 *     "x; axis:axes?, keepdims:bool=false"  attributes: name:kind, then `?`
 *                                           (optional, TM_ATTR_NONE when absent) or
 *                                           =default; neither means required
 *     "x; axis:axis=0 | exclusive:bool=false, reverse:bool=false"
 *                                           after `|` attributes are named only (in
 *                                           Lua's option table)
 * Kinds: bool int float str dtype axis axes ints floats shape tensor func.
 *
 * Rules
 *   infer   from input types and attributes to output types; checks everything that
 *           the kernel relies on; sizes may be -1.  It runs again with concrete
 *           shapes before the kernel.  Errors name the op's arguments, not the op
 *           (the door adds it).
 *   kernel  fills outputs whose shapes infer gave.  An op with TM_OP_DYNAMIC makes
 *           its outputs itself with tm_kctx_make.  May use ctx scratch memory.  Gets
 *           concrete shapes only.  Must not fail but for data errors (bad ids).
 *           Strings of an output may point into bytes of the inputs or attributes:
 *           whoever runs the kernel keeps those alive, or copies (not of
 *           TM_OP_DYNAMIC: tm_kctx_give'n tensors own or keep their bytes).
 *   grad    emits ops (graph/grad.h) and gives one gradient an input, or none.
 *
 * Threads: ops are registered before use; after that the table is constant.
 */
#ifndef TM_GRAPH_OP_H
#define TM_GRAPH_OP_H

#include "base/cancel.h"
#include "graph/attr.h"
#include "graph/type.h"

typedef struct tm_op tm_op;

enum { TM_MAX_OUTPUTS = 64, TM_MAX_LIST = 256 }; /* inputs of one node, list included */

enum {
  TM_OP_STATEFUL = 1,    /* order is kept, never merged or dropped: print, assign */
  TM_OP_RANDOM = 2,      /* draws numbers: not folded, not merged */
  TM_OP_ELEMENTWISE = 4, /* output i depends on element i of (broadcast) inputs */
  TM_OP_DYNAMIC = 8,     /* output shapes are known only to the kernel, or strings */
  TM_OP_INPLACE = 16,    /* the kernel is right when output 0 shares memory with an
                            input of the same dtype and shape */
  TM_OP_VIEW = 32,       /* output 0 is input 0's bytes in another shape */
  TM_OP_STATE = 64,      /* reads or writes variables or iterators: the executor
                            runs it through graph/state.h, kernel is NULL */
  TM_OP_SUBGRAPH = 128,  /* cond, while_loop: run by the executor, kernel is NULL */
  TM_OP_HIDDEN = 256     /* not a user-visible function */
};

typedef struct tm_infer {
  const tm_op *op;
  int32_t nin;
  const tm_type *in;
  const tm_attrs *attrs;
  int32_t nout; /* infer sets it, 0..TM_MAX_OUTPUTS */
  tm_type out[TM_MAX_OUTPUTS];
  tm_err *err;
} tm_infer;

struct tm_spans;

/* What a running kernel may need beside its views. */
typedef struct tm_run_env {
  uint64_t seed;          /* global seed */
  uint64_t closure;       /* number of the closure that random ops draw by */
  int64_t worker;         /* index of this worker, -1 on the chief */
  tm_cancel *cancel;      /* may be NULL */
  int threads;            /* a kernel may use so many threads, >= 1 */
  struct tm_spans *spans; /* when ops run is told there (graph/spans.h); NULL: not */
} tm_run_env;

typedef struct tm_kctx {
  const tm_op *op;
  int32_t nin, nout;
  const tm_view *in;
  tm_view *out;     /* data set, unless TM_OP_DYNAMIC */
  tm_tensor **made; /* per output: what tm_kctx_make made */
  const tm_attrs *attrs;
  uint64_t place; /* identity of the node, for random ops */
  const tm_run_env *env;
  void *scratch; /* scratch_bytes from op->scratch, 64-byte aligned */
  size_t scratch_bytes;
  tm_err *err;
} tm_kctx;

/* For TM_OP_DYNAMIC: give output i memory of this shape. */
TM_CHECKED tm_status tm_kctx_make(tm_kctx *c, int32_t i, tm_dtype t, const tm_shape *s);
/* The same for an output that already is a tensor (takes the reference). */
void tm_kctx_give(tm_kctx *c, int32_t i, tm_tensor *t);

struct tm_gctx;

struct tm_op {
  const char *name; /* "reduce_sum"; a prefix "nn." or "strings." or "random." is
                       the Lua sub-table it lives in */
  const char *sig;
  const char *help; /* one sentence with shapes, first line of Lua's help() */
  uint32_t flags;
  tm_status (*infer)(tm_infer *c);
  tm_status (*kernel)(tm_kctx *c);
  tm_status (*grad)(struct tm_gctx *c); /* NULL: no gradient flows through */
  size_t (*scratch)(const tm_kctx *c);  /* bytes; NULL: none (views have no data) */
};

/* The parsed signature. */
typedef struct tm_param {
  char name[24];
  tm_attr_kind kind;
  bool optional;
  bool named_only;
  tm_attr dflt; /* TM_ATTR_NONE: none */
} tm_param;

typedef struct tm_sig {
  int32_t min_in, max_in; /* max_in = TM_MAX_LIST for a list */
  int32_t nnames;         /* declared input names */
  char in_name[8][24];
  bool list; /* the (only) input is a list "xs..." */
  int32_t nattr;
  tm_param attr[TM_MAX_ATTRS];
} tm_sig;

/* Registers built-in ops on first use (idempotent, thread-safe). */
TM_CHECKED tm_status tm_ops_init(tm_err *err);
/* Add one op; its struct must stay alive.  TM_EEXISTS, TM_EINVAL (bad signature). */
TM_CHECKED tm_status tm_op_add(const tm_op *op, tm_err *err);
const tm_op *tm_op_find(const char *name); /* NULL when there is none */
int32_t tm_op_count(void);
const tm_op *tm_op_at(int32_t i); /* in order of registration */
const tm_sig *tm_op_sig(const tm_op *op);
/* Index of an attribute by name, -1 when absent. */
int32_t tm_op_attr_index(const tm_op *op, const char *name);
/* Fill missing attributes with defaults and check kinds and required ones. */
TM_CHECKED tm_status tm_op_complete_attrs(const tm_op *op, tm_attrs *attrs,
                                          tm_err *err);
/* Infer with the op's name put into err. */
TM_CHECKED tm_status tm_op_infer(const tm_op *op, const tm_type *in, int32_t nin,
                                 const tm_attrs *attrs, tm_type *out, int32_t *nout,
                                 tm_err *err);

/* Built-in op groups: one array per file core/graph/ops_*.c, listed here and in
 * ops.c (tm_ops_init walks them). */
#define TM_OP_GROUPS(X) \
  X(math)               \
  X(compare)            \
  X(reduce)             \
  X(cum)                \
  X(shape)              \
  X(slice)              \
  X(pack)               \
  X(encode)             \
  X(index)              \
  X(sparse)             \
  X(bags)               \
  X(segment)            \
  X(linalg)             \
  X(einsum)             \
  X(create)             \
  X(random)             \
  X(nn)                 \
  X(conv)               \
  X(pool)               \
  X(batchnorm)          \
  X(dropout)            \
  X(norm)               \
  X(sort)               \
  X(nd)                 \
  X(softmax)            \
  X(loss)               \
  X(strings)            \
  X(lookup)             \
  X(state)              \
  X(control)            \
  X(check)
typedef struct tm_op_group {
  const tm_op *ops;
  int32_t n;
} tm_op_group;
#define X(g) extern const tm_op_group tm_ops_##g;
TM_OP_GROUPS(X)
#undef X

#endif
