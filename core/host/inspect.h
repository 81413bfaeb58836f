/*
 * inspect.h - `tidemill inspect CHECKPOINT`: what a checkpoint holds, and whether it is
 * whole.
 *
 * Threads: the main thread of the program.
 */
#ifndef TM_HOST_INSPECT_H
#define TM_HOST_INSPECT_H

/* argv[0] is "inspect".  Returns the exit status: 1, it cannot be read or is damaged.
 */
int tm_host_inspect(int argc, char **argv);

#endif
