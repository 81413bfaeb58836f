#include "base/check.h"
#include "graph/op.h"

/* Outputs that a kernel makes itself (TM_OP_DYNAMIC). */

void tm_kctx_give(tm_kctx *c, int32_t i, tm_tensor *t) {
  TM_DCHECK(i >= 0 && i < c->nout);
  if (c->made[i]) tm_tensor_unref(c->made[i]);
  c->made[i] = t;
  c->out[i] = t->v;
}

tm_status tm_kctx_make(tm_kctx *c, int32_t i, tm_dtype t, const tm_shape *s) {
  tm_tensor *x;
  TM_TRY(tm_tensor_new(t, s, &x, c->err));
  tm_kctx_give(c, i, x);
  return TM_OK;
}
