/*
 * mem.h - every allocation of the core goes through here.
 *
 * Sizes are passed back on release, so live bytes are counted exactly and a test
 * may install a hook that fails the n-th allocation.
 *
 * Threads: any.  The hook is installed before other threads start.
 */
#ifndef TM_BASE_MEM_H
#define TM_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* As Lua's allocator: n == 0 frees p; NULL p allocates; otherwise resizes. */
typedef void *(*tm_mem_fn)(void *ud, void *p, size_t old_size, size_t n);

/* Install a hook; NULL restores malloc.  Only while nothing is allocated by others. */
void tm_mem_hook(tm_mem_fn fn, void *ud);

void *tm_malloc(size_t n);               /* n > 0; NULL when out of memory */
void *tm_calloc(size_t count, size_t n); /* zeroed; NULL on overflow too */
void *tm_realloc(void *p, size_t old_size, size_t n);
void tm_free(void *p, size_t n); /* p may be NULL; n is the size asked for */

/* 64-byte aligned (and aligned to a huge page from 2 MB on).  The bytes come from the
 * C library; a hook is asked first, by a trial allocation, and may say no. */
void *tm_malloc_aligned(size_t n);
void tm_free_aligned(void *p, size_t n);

char *tm_strdup(const char *s); /* freed by tm_strfree */
/* At most len bytes, up to the first NUL as in C; the copy is NUL-terminated. */
char *tm_strndup(const char *s, size_t len);
void tm_strfree(char *s); /* s may be NULL */

/* Bytes live now, aligned ones included. */
int64_t tm_mem_live(void);

/* a * b into *out; false on overflow. */
bool tm_mul_size(size_t a, size_t b, size_t *out);
bool tm_mul_i64(int64_t a, int64_t b, int64_t *out);
bool tm_add_i64(int64_t a, int64_t b, int64_t *out);

#endif
