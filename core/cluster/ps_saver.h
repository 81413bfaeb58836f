/*
 * ps_saver.h - the ps's side of a checkpoint: one snapshot, read by the chief or
 * written by a thread of its own, so that the loops go on serving.
 *
 * The snapshot lives until it is released or its connection ends; whoever is writing it
 * then stops, and its file goes.
 *
 * Ownership: the lane's, which the thread keeps alive.  Threads: any.
 */
#ifndef TM_CLUSTER_PS_SAVER_H
#define TM_CLUSTER_PS_SAVER_H

#include "cluster/ps_lane.h"
#include "net/conn.h"

typedef struct tm_ps_saver tm_ps_saver;

TM_CHECKED tm_status tm_ps_saver_new(tm_ps_saver **out);
void tm_ps_saver_free(tm_ps_saver *s); /* before the store; s may be NULL */
/* PS_SNAPSHOT, PS_SAVE, PS_SNAPSHOT_READ, PS_RELEASE.  They are answered here; a
 * failure is the caller's to answer. */
TM_CHECKED tm_status tm_ps_saver_message(tm_ps_saver *s, tm_ps_lane *lane, tm_conn *c,
                                         tm_message *m, tm_err *err);
void tm_ps_saver_closed(tm_ps_saver *s, tm_conn *c);
/* The lane serves no more: release the snapshot, now or when its thread has stopped. */
void tm_ps_saver_give_up(tm_ps_saver *s);
/* The same, and wait for the thread. */
void tm_ps_saver_stop(tm_ps_saver *s);

#endif
