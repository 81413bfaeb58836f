/*
 * launch.h - `tidemill launch`: a whole cluster of processes on this machine.
 *
 * Starts ps and workers (their output prefixed with the task), then the chief with the
 * script (its output as it is), each told its role by TM_CONFIG.  When the chief ends
 * all end, and its exit status is the launcher's (128 + n after signal n).
 *
 * Threads: the main thread of the program.
 */
#ifndef TM_HOST_LAUNCH_H
#define TM_HOST_LAUNCH_H

/* argv[0] is "launch".  Returns the exit status. */
int tm_host_launch(int argc, char **argv);

/* In a process that a launcher started: end with SIGTERM when the launcher is gone.
 * Nothing happens where there is none. */
void tm_host_follow_launcher(void);

#endif
