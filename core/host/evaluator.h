/*
 * evaluator.h - `tidemill evaluator script.lua`: a script as a task beside the
 * training.
 *
 * Threads: the main thread of the program.
 */
#ifndef TM_HOST_EVALUATOR_H
#define TM_HOST_EVALUATOR_H

#include <stdbool.h>

/* argv[0] is "evaluator".  Returns the exit status. */
int tm_host_evaluator(int argc, char **argv);

/* Does the environment say that this process is an evaluator? */
bool tm_host_is_evaluator(void);

#endif
