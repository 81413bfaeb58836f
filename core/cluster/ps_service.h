/*
 * ps_service.h - a store's side of the wire: frames to tm_store_handle and back.
 *
 * A ps holds a store for each lane that it serves or keeps a copy of (ps_lane.h); a
 * data connection says which one it speaks of.
 *
 * The user pointer of every connection is the number of the start in whose time it
 * works; what comes in the time of another one is refused.
 *
 * Ownership: the caller's; it must outlive every connection that uses it.
 * Threads:   message from any loop thread.
 */
#ifndef TM_CLUSTER_PS_SERVICE_H
#define TM_CLUSTER_PS_SERVICE_H

#include "net/conn.h"
#include "ps/store.h"

typedef struct tm_ps_service tm_ps_service;

TM_CHECKED tm_status tm_ps_service_new(const char *task, tm_ps_service **out);
/* Ends its own threads; before the loops of its connections end. */
void tm_ps_service_stop(tm_ps_service *s);
void tm_ps_service_free(tm_ps_service *s); /* s may be NULL */
/* A new chief begins: the shards and tokens of the last one go.  lane: the one that is
 * served from now on, -1: none until a LANE says so.  starts: the number of this start;
 * it is 0 before the first. */
TM_CHECKED tm_status tm_ps_service_reset(tm_ps_service *s, int32_t lane,
                                         uintptr_t starts);
void tm_ps_service_closed(tm_ps_service *s, tm_conn *c);
/* False: not a kind of a ps. */
bool tm_ps_service_message(tm_ps_service *s, tm_conn *c, tm_message *m);

#endif
