/*
 * ps_park.h - requests of a ps that have to wait (for room beside a snapshot): they do
 * so in a thread of their own, so that the loops go on serving, the chief's reads of
 * that snapshot above all.
 *
 *     tm_ps_park_new(serve, ud, &p);
 *     tm_ps_park_put(p, c, m);   -- serve(ud, c, m) comes in the park's thread
 *     tm_ps_park_stop(p); tm_ps_park_free(p);
 *
 * They are served in the order in which they came.  Their connections read nothing
 * further meanwhile, so there is at most one of each.  The thread is started by the
 * first of them.
 *
 * Ownership: the service's.  Threads: any; put only from callbacks of c.
 */
#ifndef TM_CLUSTER_PS_PARK_H
#define TM_CLUSTER_PS_PARK_H

#include "net/conn.h"

typedef struct tm_ps_park tm_ps_park;

TM_CHECKED tm_status tm_ps_park_new(void (*serve)(void *ud, tm_conn *c, tm_message *m),
                                    void *ud, tm_ps_park **out);
/* Waits for the one being served; those after it are forgotten, others refused. */
void tm_ps_park_stop(tm_ps_park *p);
void tm_ps_park_free(tm_ps_park *p); /* p may be NULL */
/* Takes the payload.  After a failure nothing was done. */
TM_CHECKED tm_status tm_ps_park_put(tm_ps_park *p, tm_conn *c, tm_message *m);
/* There is one, waiting or being served. */
bool tm_ps_park_busy(const tm_ps_park *p);

#endif
