#include "cluster/ps_park.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"

/*
 * Invariants:
 *   (1) A request on the list holds a reference on its connection, which is on hold.
 *   (2) n counts the requests on the list and the one being served.
 *   (3) `started` is set once, under mu; then there is a thread to join.
 */
typedef struct park_request {
  struct park_request *next;
  tm_conn *conn;
  tm_message m;
  size_t size;
  uint8_t meta[];
} park_request;

struct tm_ps_park {
  void (*serve)(void *ud, tm_conn *c, tm_message *m);
  void *ud;
  pthread_mutex_t mu;
  pthread_cond_t more;
  park_request *head, *tail; /* under mu */
  atomic_int n;
  bool started, stop; /* under mu */
  pthread_t thread;
};

tm_status tm_ps_park_new(void (*serve)(void *ud, tm_conn *c, tm_message *m), void *ud,
                         tm_ps_park **out) {
  tm_ps_park *p = *out = tm_calloc(1, sizeof *p);
  if (!p) return TM_ENOMEM;
  p->serve = serve;
  p->ud = ud;
  pthread_mutex_init(&p->mu, NULL);
  pthread_cond_init(&p->more, NULL);
  return TM_OK;
}

bool tm_ps_park_busy(const tm_ps_park *p) {
  return atomic_load_explicit(&p->n, memory_order_acquire) > 0;
}

static void request_free(park_request *r) {
  if (r->m.payload) tm_free_aligned(r->m.payload, (size_t)r->m.f.payload_bytes);
  tm_conn_unref(r->conn);
  tm_free(r, r->size);
}

/* NULL: it ends. */
static park_request *park_next(tm_ps_park *p) {
  pthread_mutex_lock(&p->mu);
  while (!p->head && !p->stop) pthread_cond_wait(&p->more, &p->mu);
  park_request *r = p->stop ? NULL : p->head;
  if (r && !(p->head = r->next)) p->tail = NULL;
  pthread_mutex_unlock(&p->mu);
  return r;
}

static void *park_run(void *ud) {
  tm_ps_park *p = ud;
  for (park_request *r; (r = park_next(p));) {
    p->serve(p->ud, r->conn, &r->m);
    atomic_fetch_sub(&p->n, 1);
    tm_conn_hold(r->conn, false);
    request_free(r);
  }
  return NULL;
}

void tm_ps_park_stop(tm_ps_park *p) {
  pthread_mutex_lock(&p->mu);
  bool join = p->started && !p->stop;
  p->stop = true;
  pthread_cond_signal(&p->more);
  pthread_mutex_unlock(&p->mu);
  if (join) pthread_join(p->thread, NULL);
}

void tm_ps_park_free(tm_ps_park *p) {
  if (!p) return;
  tm_ps_park_stop(p);
  for (park_request *r = p->head, *next; r; r = next) {
    next = r->next;
    request_free(r);
  }
  pthread_mutex_destroy(&p->mu);
  pthread_cond_destroy(&p->more);
  tm_free(p, sizeof *p);
}

/* mu held. */
static bool park_start(tm_ps_park *p) {
  if (!p->started) p->started = pthread_create(&p->thread, NULL, park_run, p) == 0;
  return p->started;
}

tm_status tm_ps_park_put(tm_ps_park *p, tm_conn *c, tm_message *m) {
  size_t size = sizeof(park_request) + m->f.meta_bytes;
  park_request *r = tm_malloc(size);
  if (!r) return TM_ENOMEM;
  *r = (park_request){.m = *m, .size = size};
  if (m->f.meta_bytes) memcpy(r->meta, m->meta, m->f.meta_bytes);
  r->m.meta = r->meta;
  pthread_mutex_lock(&p->mu);
  bool ok = !p->stop && park_start(p);
  if (ok) {
    r->conn = tm_conn_ref(c);
    m->payload = NULL;
    tm_conn_hold(c, true);
    atomic_fetch_add(&p->n, 1);
    *(p->tail ? &p->tail->next : &p->head) = r;
    p->tail = r;
    pthread_cond_signal(&p->more);
  }
  pthread_mutex_unlock(&p->mu);
  if (ok) return TM_OK;
  tm_free(r, size);
  return TM_EEXHAUSTED;
}
