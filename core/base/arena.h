/*
 * arena.h - memory that lives as long as one thing (a graph, a step) and is freed
 * at once.
 *
 * Ownership: the arena owns all blocks.  Threads: one at a time.
 */
#ifndef TM_BASE_ARENA_H
#define TM_BASE_ARENA_H

#include <stddef.h>

typedef struct tm_arena {
  struct tm_arena_block *head;
  size_t block_bytes; /* 0 = 4096 */
} tm_arena;

#define TM_ARENA_INIT \
  { NULL, 0 }

void *tm_arena_alloc(tm_arena *a, size_t n);  /* 16-byte aligned, NULL: no memory */
void *tm_arena_calloc(tm_arena *a, size_t n); /* zeroed */
char *tm_arena_strndup(tm_arena *a, const char *s, size_t len);
void tm_arena_release(tm_arena *a);
/* Forget all addresses but keep memory for as many bytes again, in one block: a
 * round that needs what the round before needed allocates nothing. */
void tm_arena_reset(tm_arena *a);

#endif
