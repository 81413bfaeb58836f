#include "cluster/board.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "net/addr.h"
#include "net/channel.h"

/*
 * Design.  A ring of the last BOARD_KEPT departures, made when the first is told.  That
 * a process has gone is seen by dialling its address: nobody answers, or another
 * incarnation does.  A process that hangs still takes connections, so it does not count
 * as gone until it is killed.
 *
 * Invariant: departure n is in kept[(n - 1) % BOARD_KEPT].
 */
enum { BOARD_KEPT = 1024 };

typedef struct board_entry {
  tm_departure d;
  tm_hello self;
} board_entry;

struct tm_board {
  pthread_mutex_t mu;
  int refs; /* guarded by mu, as all */
  uint64_t n;
  board_entry *kept; /* NULL: none was told */
};

tm_status tm_board_new(tm_board **out) {
  *out = tm_calloc(1, sizeof **out);
  if (!*out) return TM_ENOMEM;
  pthread_mutex_init(&(*out)->mu, NULL);
  (*out)->refs = 1;
  return TM_OK;
}

tm_board *tm_board_ref(tm_board *b) {
  if (!b) return NULL;
  pthread_mutex_lock(&b->mu);
  b->refs++;
  pthread_mutex_unlock(&b->mu);
  return b;
}

void tm_board_unref(tm_board *b) {
  if (!b) return;
  pthread_mutex_lock(&b->mu);
  bool last = --b->refs == 0;
  pthread_mutex_unlock(&b->mu);
  if (!last) return;
  pthread_mutex_destroy(&b->mu);
  tm_free(b->kept, BOARD_KEPT * sizeof *b->kept);
  tm_free(b, sizeof *b);
}

static board_entry *board_at(tm_board *b, uint64_t number) {
  return &b->kept[(number - 1) % BOARD_KEPT];
}

void tm_board_say(tm_board *b, const tm_departure *d, const tm_hello *self) {
  pthread_mutex_lock(&b->mu);
  if (!b->kept) b->kept = tm_calloc(BOARD_KEPT, sizeof *b->kept);
  if (!b->kept) {
    pthread_mutex_unlock(&b->mu);
    tm_log(TM_LOG_ERROR, "no memory to note that %s leaves: %s", d->task, d->why);
    return;
  }
  board_entry *e = board_at(b, ++b->n);
  e->d = *d;
  e->d.number = b->n;
  e->d.cut = e->d.gone = false;
  e->self = *self;
  pthread_mutex_unlock(&b->mu);
}

static uint64_t board_first(const tm_board *b) {
  return b->n > BOARD_KEPT ? b->n - BOARD_KEPT + 1 : 1;
}

void tm_board_cut(tm_board *b, uint64_t incarnation) {
  pthread_mutex_lock(&b->mu);
  for (uint64_t i = board_first(b); i <= b->n; i++)
    if (board_at(b, i)->d.incarnation == incarnation) board_at(b, i)->d.cut = true;
  pthread_mutex_unlock(&b->mu);
}

uint64_t tm_board_count(tm_board *b) {
  pthread_mutex_lock(&b->mu);
  uint64_t n = b->n;
  pthread_mutex_unlock(&b->mu);
  return n;
}

bool tm_board_next(tm_board *b, uint64_t number, tm_departure *out) {
  pthread_mutex_lock(&b->mu);
  uint64_t at = number + 1 > board_first(b) ? number + 1 : board_first(b);
  bool there = at <= b->n;
  if (there) *out = board_at(b, at)->d;
  pthread_mutex_unlock(&b->mu);
  return there;
}

/* Is the process of e not at its address any more? */
static bool board_gone(const board_entry *e, tm_cancel *cancel) {
  tm_channel *ch;
  tm_err err;
  tm_channel_options o = {.address = e->d.address,
                          .self = e->self,
                          .connect_timeout_ns = 1000000000,
                          .silence_ns = 1000000000,
                          .cancel = cancel};
  int fd;
  tm_err_clear(&err);
  if (tm_addr_connect(e->d.address, true, o.connect_timeout_ns, NULL, &fd, NULL, &err))
    return true;
  close(fd);
  snprintf(o.self.purpose, sizeof o.self.purpose, "control");
  if (tm_channel_open(&o, &ch, &err)) return false; /* it hangs, or ends just now */
  bool other = tm_channel_peer(ch)->incarnation != e->d.incarnation;
  tm_channel_close(ch);
  return other;
}

int tm_board_look(tm_board *b, tm_cancel *cancel) {
  int left = 0;
  board_entry e;
  tm_departure d;
  for (uint64_t i = 0; tm_board_next(b, i, &d); i = d.number) {
    if (d.gone) continue;
    pthread_mutex_lock(&b->mu);
    e = *board_at(b, d.number);
    pthread_mutex_unlock(&b->mu);
    bool gone = e.d.number == d.number && e.d.cut && board_gone(&e, cancel);
    if (!gone) left++;
    pthread_mutex_lock(&b->mu);
    if (board_at(b, d.number)->d.number == d.number)
      board_at(b, d.number)->d.gone = gone;
    pthread_mutex_unlock(&b->mu);
  }
  return left;
}
