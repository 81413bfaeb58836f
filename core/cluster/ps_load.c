#include "cluster/ps_load.h"

#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "cluster/ps_wire.h"

/*
 * Design.  A frame that carries rows is worked off at once.  One that names a
 * checkpoint gets a thread, which owns a copy of the metadata; threads that are done
 * are joined by the next one, and all of them by free.
 *
 * Invariants:
 *   (1) At most LOAD_JOBS threads; one more request is refused.
 *   (2) `running` of a job goes false after its last use of the connection.
 */
enum { LOAD_JOBS = 8 };

typedef struct load_job {
  struct load_job *next;
  tm_ps_loader *loader;
  pthread_t thread;
  atomic_bool running;
  tm_conn *conn;
  uint64_t id;
  size_t bytes;
  uint8_t meta[];
} load_job;

struct tm_ps_loader {
  tm_load_put put;
  void *ud;
  tm_cancel cancel;
  pthread_mutex_t mu;
  load_job *jobs; /* under mu */
};

/* --- metadata --- */

void tm_ps_load_pack(tm_packer *w, const tm_ps_load *l) {
  tm_pack_array(w, 5);
  tm_pack_cstr(w, l->path);
  tm_pack_uint(w, l->size);
  tm_pack_uint(w, l->crc);
  tm_pack_bool(w, l->check);
  tm_pack_array(w, (uint32_t)l->n);
  for (int32_t i = 0; i < l->n; i++) {
    const tm_ps_load_item *it = &l->item[i];
    tm_pack_array(w, 8);
    tm_pack_cstr(w, it->name);
    tm_pack_int(w, it->from);
    tm_pack_int(w, it->rows);
    tm_pack_uint(w, it->place.uid);
    tm_pack_uint(w, it->place.shard);
    tm_pack_int(w, it->place.slot);
    tm_pack_uint(w, it->place.optimizer);
    tm_pack_int(w, it->place.first);
  }
}

void tm_ps_put_pack(tm_packer *w, const tm_ps_place *p, const tm_view *rows) {
  tm_pack_array(w, 7); /* the type counts as two */
  tm_pack_uint(w, p->uid);
  tm_pack_uint(w, p->shard);
  tm_pack_int(w, p->slot);
  tm_pack_uint(w, p->optimizer);
  tm_pack_int(w, p->first);
  tm_type_pack(w, rows->dtype, &rows->shape);
}

static void load_unpack_place(tm_unpacker *r, tm_ps_place *p) {
  p->uid = tm_unpack_uint(r);
  p->shard = (uint32_t)tm_unpack_range(r, 0, UINT32_MAX);
  p->slot = (int32_t)tm_unpack_range(r, -1, INT32_MAX);
  p->optimizer = tm_unpack_uint(r);
  p->first = tm_unpack_range(r, 0, INT64_MAX);
}

static const char *load_text(tm_unpacker *r, size_t max, tm_arena *a) {
  size_t n;
  const char *s = tm_unpack_str(r, max, &n);
  char *copy = s ? tm_arena_strndup(a, s, n) : NULL;
  if (s && !copy) r->status = TM_ENOMEM;
  return copy ? copy : "";
}

static void load_unpack_item(tm_unpacker *r, tm_arena *a, tm_ps_load_item *it) {
  tm_unpack_array(r, 8, 8);
  it->name = load_text(r, 4096, a);
  it->from = tm_unpack_range(r, 0, INT64_MAX);
  it->rows = tm_unpack_range(r, 0, INT64_MAX);
  load_unpack_place(r, &it->place);
}

static tm_status load_unpack(const void *p, size_t n, tm_arena *a, tm_ps_load *l,
                             tm_err *err) {
  tm_unpacker r;
  memset(l, 0, sizeof *l);
  tm_unpack_init(&r, p, n);
  tm_unpack_array(&r, 5, 5);
  l->path = load_text(&r, 4096, a);
  l->size = tm_unpack_uint(&r);
  l->crc = (uint32_t)tm_unpack_range(&r, 0, UINT32_MAX);
  l->check = tm_unpack_bool(&r);
  l->n = (int32_t)tm_unpack_array(&r, 0, TM_LOAD_ITEMS);
  tm_ps_load_item *it = tm_arena_calloc(a, ((size_t)l->n + 1) * sizeof *it);
  if (!it && r.status == TM_OK) r.status = TM_ENOMEM;
  for (int32_t i = 0; i < l->n && r.status == TM_OK; i++)
    load_unpack_item(&r, a, &it[i]);
  l->item = it;
  if (r.status == TM_ENOMEM) return tm_nomem(err, "a part of a checkpoint");
  return tm_unpack_end(&r, err);
}

/* --- rows --- */

tm_status tm_load_rows(tm_ckpt_reader *r, const tm_ckpt_tensor *t,
                       const tm_ps_load_item *item, uint64_t bytes, tm_cancel *cancel,
                       tm_load_put put, void *ud, tm_err *err) {
  tm_shape row = t->shape;
  if (row.rank) row.dim[0] = 1;
  uint64_t size = (uint64_t)tm_shape_count(&row) * tm_dtype_size(t->dtype);
  int64_t step =
      size && bytes / size < INT64_MAX ? (int64_t)(bytes / size) : item->rows;
  tm_ps_place at = item->place;
  if (step < 1) step = 1;
  for (int64_t done = 0, n; done < item->rows; done += n) {
    tm_tensor *x;
    if (tm_cancelled(cancel))
      return tm_fail(err, TM_ECANCELLED, "the restore was given up");
    n = item->rows - done < step ? item->rows - done : step;
    at.first = item->place.first + done;
    TM_TRY(tm_ckpt_read(r, t, item->from + done, n, &x, err));
    tm_status s = put(ud, &at, &x->v, err);
    tm_tensor_unref(x);
    TM_TRY(s);
  }
  return TM_OK;
}

static uint64_t load_bytes(const tm_ckpt_tensor *t, const tm_ps_load_item *it) {
  tm_shape s = t->shape;
  if (s.rank) s.dim[0] = it->rows;
  return (uint64_t)tm_shape_count(&s) * tm_dtype_size(t->dtype);
}

static tm_status load_item(tm_ps_loader *l, tm_ckpt_reader *r, const tm_ps_load *ask,
                           const tm_ps_load_item *it, tm_err *err) {
  const tm_ckpt_tensor *t = tm_ckpt_find(r, it->name);
  if (!t)
    return tm_fail(err, TM_ENOTFOUND, "\"%.300s\" has no \"%.150s\"", ask->path,
                   it->name);
  int64_t rows = t->shape.rank ? t->shape.dim[0] : 1;
  if (it->from > rows || it->rows > rows - it->from)
    return tm_fail(err, TM_ERANGE, "\"%.200s\" has fewer rows in \"%.200s\"", it->name,
                   ask->path);
  if (ask->check) return tm_ckpt_verify_rows(r, t, it->from, it->rows, err);
  bool whole = load_bytes(t, it) <= TM_LOAD_WHOLE;
  return tm_load_rows(r, t, it, whole ? TM_LOAD_WHOLE : TM_LOAD_PIECE, &l->cancel,
                      l->put, l->ud, err);
}

/* NULL: it is not to be seen from here. */
static tm_ckpt_reader *load_open(const tm_ps_load *ask) {
  tm_ckpt_reader *r;
  uint64_t size;
  uint32_t crc;
  if (tm_ckpt_open(ask->path, &r, NULL)) return NULL;
  tm_ckpt_identity(r, &size, &crc);
  if (size == ask->size && crc == ask->crc) return r;
  tm_ckpt_close(r);
  return NULL;
}

static tm_status load_all(tm_ps_loader *l, tm_ps_load *ask, tm_err *err) {
  tm_ckpt_reader *r = load_open(ask);
  ask->unseen = !r;
  if (!r) return TM_OK;
  if (!ask->check) tm_ckpt_trust(r); /* the same request with `check` came before */
  tm_status s = TM_OK;
  for (int32_t i = 0; i < ask->n && s == TM_OK; i++)
    s = load_item(l, r, ask, &ask->item[i], err);
  tm_ckpt_close(r);
  return s;
}

/* --- threads --- */

static tm_status load_answer(tm_conn *c, uint64_t id, bool unseen) {
  tm_buf meta = TM_BUF_INIT(64);
  tm_packer w;
  tm_frame f = {.kind = TM_F_PS_LOAD_REPLY, .id = id};
  tm_pack_init(&w, &meta);
  tm_pack_bool(&w, unseen);
  tm_status s = w.status ? w.status : tm_conn_send(c, &f, &meta, NULL, 0, NULL, NULL);
  tm_buf_release(&meta);
  return s;
}

static void *load_thread(void *ud) {
  load_job *j = ud;
  tm_arena a = TM_ARENA_INIT;
  tm_ps_load ask;
  tm_err err;
  tm_err_clear(&err);
  tm_status s = load_unpack(j->meta, j->bytes, &a, &ask, &err);
  if (s == TM_OK) s = load_all(j->loader, &ask, &err);
  if (s && err.code == TM_OK) tm_fail(&err, s, "the checkpoint cannot be read");
  s = s ? tm_conn_send_error(j->conn, j->id, &err)
        : load_answer(j->conn, j->id, ask.unseen);
  if (s == TM_ENOMEM) tm_conn_close(j->conn, s, "no memory for an answer");
  tm_conn_unref(j->conn);
  tm_arena_release(&a);
  atomic_store(&j->running, false);
  return NULL;
}

static void load_join(load_job *j) {
  pthread_join(j->thread, NULL);
  tm_free(j, sizeof *j + j->bytes);
}

/* Under mu: joins the ones that are done; how many are not. */
static int load_reap(tm_ps_loader *l) {
  int n = 0;
  for (load_job **at = &l->jobs, *j; (j = *at);) {
    if (atomic_load(&j->running)) {
      n++;
      at = &j->next;
    } else {
      *at = j->next;
      load_join(j);
    }
  }
  return n;
}

/* Under mu. */
static tm_status load_start(tm_ps_loader *l, tm_conn *c, const tm_message *m,
                            tm_err *err) {
  if (load_reap(l) >= LOAD_JOBS)
    return tm_fail(err, TM_EEXHAUSTED, "%d checkpoints are being read here already",
                   (int)LOAD_JOBS);
  load_job *j = tm_calloc(1, sizeof *j + m->f.meta_bytes);
  if (!j) return tm_nomem(err, "a part of a checkpoint");
  j->loader = l;
  j->conn = tm_conn_ref(c);
  j->id = m->f.id;
  j->bytes = m->f.meta_bytes;
  memcpy(j->meta, m->meta, j->bytes);
  atomic_init(&j->running, true);
  if (pthread_create(&j->thread, NULL, load_thread, j)) {
    tm_conn_unref(c);
    tm_free(j, sizeof *j + j->bytes);
    return tm_fail(err, TM_EEXHAUSTED, "no thread to read a checkpoint with");
  }
  j->next = l->jobs;
  l->jobs = j;
  return TM_OK;
}

/* --- the service's side --- */

tm_status tm_ps_loader_new(tm_load_put put, void *ud, tm_ps_loader **out) {
  tm_ps_loader *l = *out = tm_calloc(1, sizeof *l);
  if (!l) return TM_ENOMEM;
  l->put = put;
  l->ud = ud;
  pthread_mutex_init(&l->mu, NULL);
  return TM_OK;
}

void tm_ps_loader_free(tm_ps_loader *l) {
  if (!l) return;
  tm_cancel_set(&l->cancel);
  for (load_job *j = l->jobs, *next; j; j = next) {
    next = j->next;
    load_join(j);
  }
  pthread_mutex_destroy(&l->mu);
  tm_free(l, sizeof *l);
}

tm_status tm_ps_loader_put(tm_ps_loader *l, const tm_message *m, tm_err *err) {
  tm_unpacker r;
  tm_ps_place p;
  tm_view v = {.data = m->payload};
  static uint64_t nothing;
  tm_unpack_init(&r, m->meta, m->f.meta_bytes);
  tm_unpack_array(&r, 7, 7);
  load_unpack_place(&r, &p);
  tm_type_unpack(&r, &v.dtype, &v.shape);
  if (r.status == TM_OK && tm_frame_pad(tm_view_bytes(&v)) != m->f.payload_bytes)
    tm_unpack_fail(&r, "describes another payload than came");
  TM_TRY(tm_unpack_end(&r, err));
  if (!v.data) v.data = &nothing;
  return l->put(l->ud, &p, &v, err);
}

static tm_status load_put(tm_ps_loader *l, tm_conn *c, tm_message *m, tm_err *err) {
  TM_TRY(tm_ps_loader_put(l, m, err));
  tm_status s = load_answer(c, m->f.id, false);
  return s == TM_ENOMEM ? tm_nomem(err, "an answer") : TM_OK;
}

tm_status tm_ps_loader_message(tm_ps_loader *l, tm_conn *c, tm_message *m,
                               tm_err *err) {
  tm_unpacker r;
  tm_unpack_init(&r, m->meta, m->f.meta_bytes);
  if (tm_unpack_array(&r, 5, 7) != 5) return load_put(l, c, m, err);
  pthread_mutex_lock(&l->mu);
  tm_status s = load_start(l, c, m, err);
  pthread_mutex_unlock(&l->mu);
  return s;
}
