/*
 * role.h - `tidemill worker` and `tidemill ps`: this process as a task of a cluster.
 *
 * The cluster and the place in it come from TM_CONFIG or TF_CONFIG.  No Lua runs.
 *
 * Threads: the main thread of the program.
 */
#ifndef TM_HOST_ROLE_H
#define TM_HOST_ROLE_H

#include <stdbool.h>

/* argv[0] is "worker" or "ps".  Returns the exit status. */
int tm_host_role(int argc, char **argv);

/* What the environment says of a script: true when it names a worker or ps, which was
 * served (status is the exit status), or when it is wrong (status 1). */
bool tm_host_script_role(int *status);

#endif
