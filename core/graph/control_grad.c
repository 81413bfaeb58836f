#include "graph/tape.h"

/* Design.  Gradient of cond: see tm_cond_backward in tape.h. */

tm_status tm_cond_backward(tm_gctx *c, const uint64_t *uid, int32_t nuid,
                           tm_value **var) {
  (void)uid;
  (void)nuid;
  (void)var;
  return tm_fail(c->err, TM_EUNIMPL, "gradients through cond are not there");
}
