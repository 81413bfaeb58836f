/*
 * tidemill.h - tidemill inside another program: hosts, scripts, ops written in C.
 *
 *     tm_host *h = tm_host_new();
 *     if (tm_host_string(h, "print(require('tidemill').version)", "hello"))
 *       fprintf(stderr, "%s\n", tm_host_error(h));
 *     tm_host_free(h);
 *
 * A host is a Lua state with the libraries of Lua and `tidemill.core` in it; the Lua
 * files of tidemill come from package.path (LUA_PATH, or where `make install` put
 * them).  Link with -ltidemill (the static library: also with what `pkg-config --libs`
 * says of the libraries in docs/dependencies.md).
 *
 * Threads: a host belongs to the thread that uses it; several hosts may live in
 * several threads.  Only tm_host_interrupt may be called from any thread, and from a
 * signal handler.
 */
#ifndef TIDEMILL_H
#define TIDEMILL_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TM_API __attribute__((visibility("default")))

/* "0.1.0" */
TM_API const char *tm_version(void);

typedef struct tm_host tm_host;

TM_API tm_host *tm_host_new(void);    /* NULL: no memory */
TM_API void tm_host_free(tm_host *h); /* joins its threads; h may be NULL */
TM_API void *tm_host_lua(tm_host *h); /* its lua_State */

/* Run a file, or a text (name: what errors call it), with arguments for `...`.
 * 0, or 1 when it failed: tm_host_error says why, with a traceback. */
TM_API int tm_host_file(tm_host *h, const char *path, int argc,
                        const char *const *argv);
TM_API int tm_host_string(tm_host *h, const char *text, const char *name);
/* Of the last run; "" when it went well.  Valid until the next. */
TM_API const char *tm_host_error(const tm_host *h);

/* The script that runs ends soon with the error "cancelled", as by Ctrl-C; without
 * one, the next does. */
TM_API void tm_host_interrupt(tm_host *h);

/* y[i] = f(x[i]) for i < n; x and y may be the same.  Called from any thread. */
typedef void (*tm_elementwise)(const float *x, float *y, size_t n);
/* Make it the op tm.NAME(x) of float32 tensors, eager and traced, in every host made
 * from now on.  Workers in other processes must register it too.  0, or 1: the name
 * is taken or no identifier, help is missing, or no memory. */
TM_API int tm_register_elementwise(const char *name, const char *help,
                                   tm_elementwise f);

#ifdef __cplusplus
}
#endif

#endif
