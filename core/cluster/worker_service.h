/*
 * worker_service.h - the worker's process: a chief's messages to a worker of this
 * process.
 *
 * Each control connection of a chief is a session with a thread of its own: it connects
 * to the ps, makes the worker, and takes it apart when the connection has ended, so the
 * loop's threads never wait.  A new chief's start ends the session before it.
 *
 * Ownership: the caller's; free it after the loop whose connections use it.
 * Threads:   message and closed from the loop's threads.
 */
#ifndef TM_CLUSTER_WORKER_SERVICE_H
#define TM_CLUSTER_WORKER_SERVICE_H

#include "net/conn.h"

typedef struct tm_worker_service tm_worker_service;

/* self: as this task says hello to ps. */
TM_CHECKED tm_status tm_worker_service_new(const tm_hello *self,
                                           tm_worker_service **out);
/* Ends the sessions and waits for their threads; s may be NULL. */
void tm_worker_service_free(tm_worker_service *s);
/* False: not a kind of a worker. */
bool tm_worker_service_message(tm_worker_service *s, tm_conn *c, tm_message *m);
/* From now on closures are handed back, those that were started are finished; a session
 * without any is told to its chief as down.  The chief knows already that this task
 * leaves. */
void tm_worker_service_leave(tm_worker_service *s, const char *why);
void tm_worker_service_closed(tm_worker_service *s, tm_conn *c);

#endif
