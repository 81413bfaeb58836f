#include "base/arena.h"

#include <stdint.h>
#include <string.h>

#include "base/mem.h"

/*
 * Design.  A list of blocks; the head is the one being filled.  What does not fit
 * an empty block gets one of its own, put behind the head, whose room stays in use.
 *
 * Invariants:
 *   (1) In each block used <= size, and used is a multiple of 16.
 *   (2) An address handed out stays valid until tm_arena_release or _reset.
 */
enum { ARENA_ALIGN = 16, ARENA_BLOCK = 4096 };

typedef struct tm_arena_block {
  struct tm_arena_block *next;
  size_t size, used; /* of data */
  _Alignas(ARENA_ALIGN) unsigned char data[];
} arena_block;

static arena_block *arena_block_new(size_t size) {
  if (size > PTRDIFF_MAX - sizeof(arena_block)) return NULL;
  arena_block *b = tm_malloc(sizeof *b + size);
  if (!b) return NULL;
  b->next = NULL;
  b->size = size;
  b->used = 0;
  return b;
}

/* A block with room for n bytes (n is rounded already). */
static arena_block *arena_room(tm_arena *a, size_t n) {
  if (a->head && n <= a->head->size - a->head->used) return a->head;
  size_t usual = a->block_bytes ? a->block_bytes : ARENA_BLOCK;
  arena_block *b = arena_block_new(n > usual ? n : usual);
  if (!b) return NULL;
  if (a->head && n > usual) {
    b->next = a->head->next;
    a->head->next = b;
  } else {
    b->next = a->head;
    a->head = b;
  }
  return b;
}

void *tm_arena_alloc(tm_arena *a, size_t n) {
  if (n > PTRDIFF_MAX - ARENA_ALIGN) return NULL;
  size_t rounded = (n + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
  if (rounded == 0) rounded = ARENA_ALIGN;
  arena_block *b = arena_room(a, rounded);
  if (!b) return NULL;
  void *p = b->data + b->used;
  b->used += rounded;
  return p;
}

void *tm_arena_calloc(tm_arena *a, size_t n) {
  void *p = tm_arena_alloc(a, n);
  return p ? memset(p, 0, n) : NULL;
}

char *tm_arena_strndup(tm_arena *a, const char *s, size_t len) {
  if (len >= PTRDIFF_MAX) return NULL;
  char *copy = tm_arena_alloc(a, len + 1);
  if (!copy) return NULL;
  if (len) memcpy(copy, s, len);
  copy[len] = '\0';
  return copy;
}

void tm_arena_release(tm_arena *a) {
  for (arena_block *b = a->head, *next; b; b = next) {
    next = b->next;
    tm_free(b, sizeof *b + b->size);
  }
  a->head = NULL;
}

void tm_arena_reset(tm_arena *a) {
  if (!a->head) return;
  if (a->head->next) {
    size_t total = 0;
    for (arena_block *b = a->head; b; b = b->next) total += b->size;
    tm_arena_release(a);
    a->head = arena_block_new(total);
  }
  if (a->head) a->head->used = 0;
}
