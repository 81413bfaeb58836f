/*
 * second.h - gradient rules of ops that are themselves gradients ("nn.silu_grad"), so
 * that gradients of gradients are right.
 *
 * Threads: those of the scope.
 */
#ifndef TM_GRAPH_SECOND_H
#define TM_GRAPH_SECOND_H

#include "graph/grad.h"

/* Of "dy, x": dy times the derivative of an activation at x. */
tm_status tm_second_flat(tm_gctx *c); /* the derivative is constant by pieces */
tm_status tm_second_elu(tm_gctx *c);
tm_status tm_second_selu(tm_gctx *c);
tm_status tm_second_gelu(tm_gctx *c);
tm_status tm_second_silu(tm_gctx *c);
tm_status tm_second_softplus(tm_gctx *c);
tm_status tm_second_softsign(tm_gctx *c);

/* Of "dy, y; axis". */
tm_status tm_second_softmax(tm_gctx *c);
tm_status tm_second_log_softmax(tm_gctx *c);

/* Of "dy, labels, logits". */
tm_status tm_second_softmax_loss(tm_gctx *c);
tm_status tm_second_sparse_loss(tm_gctx *c);

#endif
