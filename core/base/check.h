/*
 * check.h - TM_DCHECK: a caller broke a header's contract, which is a bug here.
 * Off with NDEBUG.  Never used on anything that comes from outside.
 */
#ifndef TM_BASE_CHECK_H
#define TM_BASE_CHECK_H

#include <assert.h>
#include <stddef.h>

#ifdef NDEBUG
/* Not evaluated, but compiled: what only checks use is not "unused". */
#define TM_DCHECK(x) ((void)(0 && (x)))
#else
#define TM_DCHECK(x) assert(x)
#endif
#define TM_COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* The object that embeds `member` at `ptr`. */
#define TM_CONTAINER(ptr, type, member) \
  ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

#endif
