/*
 * script.h - `tidemill [options] [script [args]]`: a Lua state, its paths, Ctrl-C.
 *
 * Without a script a plain prompt; input that is no terminal is run as one script.
 *
 * Threads: the main thread of the program.
 */
#ifndef TM_HOST_SCRIPT_H
#define TM_HOST_SCRIPT_H

/* Returns the exit status. */
int tm_host_script(int argc, char **argv);

#endif
