/*
 * route.h - which tm_vars a variable lives in: the one tm_state of a Lua state.
 *
 * Eager ops and functions run on the chief may use variables of this process and of
 * several clusters together; an exchange is split by tm_vars, in order.
 *
 * Ownership: the router owns its map; the tm_vars are borrowed and are taken out
 *            (tm_router_forget) before they are freed.
 * Threads:   one.
 */
#ifndef TM_LUA_ROUTE_H
#define TM_LUA_ROUTE_H

#include "cluster/vars.h"

typedef struct tm_router tm_router;

/* local: where iterators are, and the home of uids that were not added. */
TM_CHECKED tm_status tm_router_new(tm_vars *local, tm_router **out);
void tm_router_free(tm_router *r); /* r may be NULL */
tm_state *tm_router_state(tm_router *r);
TM_CHECKED tm_status tm_router_add(tm_router *r, uint64_t uid, tm_vars *vars);
void tm_router_del(tm_router *r, uint64_t uid);
/* Every uid of vars goes: later use says that the strategy is closed. */
void tm_router_forget(tm_router *r, tm_vars *vars);
/* Where a uid lives; NULL when its cluster was forgotten. */
tm_vars *tm_router_vars(tm_router *r, uint64_t uid);
/* Have fn called when the variables of v, a cluster's, cannot be reached
 * (TM_EUNAVAILABLE): true, the exchange is tried again; false, it ends with *s and
 * *err, which fn may change. */
void tm_router_set_mend(tm_router *r,
                        bool (*fn)(void *ud, tm_vars *v, tm_status *s, tm_err *err),
                        void *ud);

#endif
