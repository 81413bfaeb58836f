/*
 * run.h - running single nodes with concrete inputs: the eager door, folded constants,
 * and nodes whose shapes no plan can know.  (Inside core/graph.)
 *
 * Ownership: outputs are references for the caller; after an error there are none.
 * Threads:   any.
 */
#ifndef TM_GRAPH_RUN_H
#define TM_GRAPH_RUN_H

#include "graph/exec.h"

/* Infer, allocate, run the kernel.  owner: tensor of in[0], so that a TM_OP_VIEW can
 * share its storage (NULL: it copies). */
TM_CHECKED tm_status tm_run_kernel(const tm_op *op, const tm_attrs *attrs,
                                   uint64_t place, const tm_run_env *env,
                                   const tm_view *in, int32_t nin, tm_tensor *owner,
                                   tm_tensor **out, int32_t *nout, tm_err *err);
/* A state op: one exchange, or next (it: iterator). */
TM_CHECKED tm_status tm_run_state(const tm_op *op, const tm_attrs *attrs,
                                  tm_state *state, uint64_t it, const tm_view *in,
                                  int32_t nin, tm_tensor **out, int32_t *nout,
                                  tm_err *err);
/* cond and while_loop.  sub[0], sub[1]: programs of then, otherwise; cond, body. */
TM_CHECKED tm_status tm_run_control(const tm_op *op, const tm_attrs *attrs,
                                    uint64_t place, tm_program *const *sub,
                                    const tm_run_env *env, tm_state *state,
                                    const tm_arg_value *in, int32_t nin,
                                    tm_tensor **out, int32_t *nout, tm_err *err);

/* Put the op's name into err, if no deeper one did. Returns s. */
tm_status tm_run_fail(tm_err *err, const tm_op *op, tm_status s);
/* A dense READ's tensor against the type it must have. */
TM_CHECKED tm_status tm_run_check_read(const tm_tensor *t, const tm_type *want,
                                       tm_err *err);

#endif
