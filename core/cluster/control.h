/*
 * control.h - what chief and worker tell each other, as letters; see docs/wire.md.
 *
 * Threads: pure functions.
 */
#ifndef TM_CLUSTER_CONTROL_H
#define TM_CLUSTER_CONTROL_H

#include "cluster/letter.h"
#include "cluster/worker.h"

enum { TM_CONTROL_MAX_PS = 4096, TM_CONTROL_BATCH = 1024, TM_CONTROL_GRAPHS = 1024 };

/* The first message of a chief on a control connection. */
typedef struct tm_start {
  int32_t index, nworker, threads;
  uint64_t seed;
  uint64_t incarnation; /* of the worker, as ps see it: new with each start */
  bool resume; /* of a ps: this chief has started it already, nothing begins anew */
  int64_t heartbeat_ns, silence_ns, connect_timeout_ns;
  int64_t chief_timeout_ns; /* without a chief for so long the task ends; 0: never */
  int32_t replicas;         /* 1: each lane has a copy on the next ps */
  int32_t nps;
  char (*ps)[280]; /* addresses; tm_start_release */
} tm_start;

void tm_start_pack(tm_packer *w, const tm_start *s, const char *const *ps);
TM_CHECKED tm_status tm_start_unpack(const void *p, size_t n, tm_start *s, tm_err *err);
void tm_start_release(tm_start *s);

void tm_var_info_pack(tm_packer *w, const tm_var_info *v);
/* One of a worker's own (a single shard, on ps -1) when `local`. */
TM_CHECKED tm_status tm_var_info_take(tm_unpacker *r, bool local, tm_var_info **out);
TM_CHECKED tm_status tm_var_info_unpack(const void *p, size_t n, tm_var_info **out,
                                        tm_err *err);

/* A closure's graph goes by its hash. */
void tm_closure_pack(tm_letter *l, const tm_closure *c);
/* c->graph is not set; arg is released by tm_closure_release. */
void tm_closure_take(tm_letter_in *in, tm_closure *c, uint64_t hash[2]);
void tm_closure_release(tm_closure *c);

void tm_completion_pack(tm_letter *l, const tm_completion *d);
/* out is released by tm_completion_release. */
void tm_completion_take(tm_letter_in *in, tm_completion *d);
void tm_completion_release(tm_completion *d);

/* LEAVING: why a task will end, a text. */
enum { TM_LEAVING_TEXT = 480 };
TM_CHECKED tm_status tm_leaving_send(tm_conn *c, const char *why);
TM_CHECKED tm_status tm_leaving_unpack(const tm_message *m, char why[TM_LEAVING_TEXT],
                                       tm_err *err);

#endif
