/*
 * grad.h - gradient rules and tapes (reverse-mode automatic differentiation).
 *
 * A rule gets the node's inputs, outputs and the gradients of its outputs (NULL
 * where nothing flows) and sets din[i] for inputs that have a gradient.  It
 * computes by emitting ops through the door, so one rule serves the eager tape and
 * the traced graph.
 *
 *     static tm_status grad_mul(tm_gctx *c) {
 *       TM_TRY(tm_g_set_like(c, 0, tm_g2(c, "mul", c->dout[0], c->in[1])));
 *       return tm_g_set_like(c, 1, tm_g2(c, "mul", c->dout[0], c->in[0]));
 *     }
 *
 * Threads: those of the scope.
 */
#ifndef TM_GRAPH_GRAD_H
#define TM_GRAPH_GRAD_H

#include "graph/value.h"

typedef struct tm_gctx {
  tm_scope *sc;
  const tm_op *op;
  const tm_attrs *attrs;
  int32_t nin, nout;
  tm_value *const *in;
  tm_value *const *out;
  tm_value *const *dout; /* NULL where no gradient flows */
  tm_value **din;        /* to set (a reference each); NULL = none */
  const bool *need;      /* need[i]: somebody wants din[i] */
  tm_err *err;
  tm_status status;         /* sticky: set by tm_g* when an op fails */
  struct tm_g_temps *temps; /* values made by tm_g*, freed when the rule is done */
} tm_gctx;

/* Apply an op by name to one or two values with default attributes.  The result is
 * borrowed (the ctx frees it after the rule).  NULL after an error (sticky), and
 * NULL arguments pass through as NULL. */
tm_value *tm_g1(tm_gctx *c, const char *op, tm_value *a);
tm_value *tm_g2(tm_gctx *c, const char *op, tm_value *a, tm_value *b);
/* General form; attrs are released by the call. nout-th output is returned. */
tm_value *tm_gn(tm_gctx *c, const char *op, tm_value *const *in, int32_t nin,
                tm_attrs *attrs, int32_t nth);
/* A scalar constant of v's dtype. */
tm_value *tm_g_const(tm_gctx *c, tm_value *like, double x);
/* din[i] = v (takes a new reference); NULL v is ignored.  Returns c->status. */
tm_status tm_g_set(tm_gctx *c, int32_t i, tm_value *v);
/* The same after summing v down to the shape of in[i] (undo broadcasting). */
tm_status tm_g_set_like(tm_gctx *c, int32_t i, tm_value *v);
/* An attrs value with op's attributes all absent, for filling by name. */
tm_status tm_g_attrs(tm_gctx *c, const char *op, tm_attrs *out);
tm_attr *tm_attr_by_name(const char *op, tm_attrs *a, const char *name);

/* --- tapes --- */
/* A gradient: dense value, or rows (ids and rows of a variable), or nothing. */
typedef struct tm_grad {
  tm_value *dense; /* reference or NULL */
  tm_value *ids;   /* sparse: (n) int64, may repeat */
  tm_value *rows;  /* sparse: (n, row...) */
} tm_grad;
void tm_grad_release(tm_grad *g);

/* What to differentiate by: a value, or a variable by uid. */
typedef struct tm_source {
  tm_value *value; /* NULL: the variable */
  uint64_t uid;
} tm_source;

TM_CHECKED tm_status tm_tape_begin(tm_scope *sc, bool persistent, tm_tape **out);
void tm_tape_watch(tm_tape *tp, tm_value *v);
/* Stop recording (also done by tm_tape_gradient of a non-persistent tape). */
void tm_tape_stop(tm_tape *tp);
void tm_tape_unref(tm_tape *tp);
/* Gradients of sum(target) (times `seed` when given) by each source; unconnected
 * ones come back empty. Several reads or gathers of one variable add up: all sparse
 * -> sparse (concatenated), else dense. A second call on a non-persistent tape is
 * TM_EPRECOND. */
TM_CHECKED tm_status tm_tape_gradient(tm_tape *tp, tm_value *target, tm_value *seed,
                                      const tm_source *src, int32_t n, tm_grad *out,
                                      tm_err *err);

#endif
