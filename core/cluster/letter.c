#include "cluster/letter.h"

#include <string.h>

#include "cluster/ps_wire.h"
#include "tensor/codec.h"

/*
 * Design.  A tensor is [false, blob] in the metadata or [true, dtype, dims] with a
 * segment.  The held tensors move into the frame that goes out and are released when
 * it is written.
 */
enum { LETTER_INLINE = 1024 };

/* What a letter on its way keeps. */
typedef struct letter_held {
  int32_t n;
  size_t size;
  tm_tensor *t[];
} letter_held;

void tm_letter_init(tm_letter *l) {
  memset(l, 0, sizeof *l);
  l->meta.max = TM_FRAME_MAX_META;
  tm_pack_init(&l->w, &l->meta);
}

void tm_letter_release(tm_letter *l) {
  for (int32_t i = 0; i < l->nheld; i++) tm_tensor_unref(l->held[i]);
  tm_free(l->held, (size_t)l->cap * sizeof *l->held);
  tm_segments_release(&l->seg);
  tm_buf_release(&l->meta);
  l->held = NULL;
  l->nheld = l->cap = 0;
}

/* Takes the reference. */
static void letter_hold(tm_letter *l, tm_tensor *t) {
  if (l->w.status == TM_OK && l->nheld == l->cap) {
    int32_t cap = l->cap ? l->cap * 2 : 8;
    tm_tensor **held =
        tm_realloc(l->held, (size_t)l->cap * sizeof *held, (size_t)cap * sizeof *held);
    if (!held) l->w.status = TM_ENOMEM;
    if (held) {
      l->held = held;
      l->cap = cap;
    }
  }
  if (l->w.status) {
    tm_tensor_unref(t);
    return;
  }
  l->held[l->nheld++] = t;
  tm_status s = tm_segments_push(&l->seg, t->v.data, tm_view_bytes(&t->v));
  if (s) l->w.status = s;
}

void tm_letter_tensor(tm_letter *l, tm_tensor *t) {
  bool out = t->v.dtype != TM_STRING && tm_view_bytes(&t->v) > LETTER_INLINE;
  tm_pack_array(&l->w, out ? 3 : 2);
  tm_pack_bool(&l->w, out);
  if (!out) {
    tm_pack_tensor(&l->w, &t->v);
    return;
  }
  tm_type_pack(&l->w, t->v.dtype, &t->v.shape);
  letter_hold(l, tm_tensor_ref(t));
}

void tm_letter_bytes(tm_letter *l, const void *p, size_t n) {
  tm_tensor *t;
  tm_shape shape = tm_shape_of(1, (const int64_t[]){(int64_t)n});
  if (l->w.status) return;
  l->w.status = tm_tensor_new(TM_U8, &shape, &t, NULL);
  if (l->w.status) return;
  if (n) memcpy(t->v.data, p, n);
  tm_letter_tensor(l, t);
  tm_tensor_unref(t);
}

static void letter_sent(void *ud) {
  letter_held *h = ud;
  for (int32_t i = 0; i < h->n; i++) tm_tensor_unref(h->t[i]);
  tm_free(h, h->size);
}

tm_status tm_letter_send(tm_letter *l, tm_conn *c, tm_frame_kind kind, uint64_t id) {
  tm_frame f = {.kind = (uint16_t)kind, .id = id};
  letter_held *h = NULL;
  tm_status s = l->w.status;
  if (s == TM_OK && l->nheld) {
    size_t size = sizeof *h + (size_t)l->nheld * sizeof *h->t;
    h = tm_malloc(size);
    if (!h) s = TM_ENOMEM;
    if (h) {
      h->n = l->nheld;
      h->size = size;
      memcpy(h->t, l->held, (size_t)l->nheld * sizeof *h->t);
      l->nheld = 0;
    }
  }
  if (s == TM_OK)
    s = tm_conn_send(c, &f, &l->meta, l->seg.s, l->seg.n, h ? letter_sent : NULL, h);
  tm_letter_release(l);
  return s;
}

/* --- in --- */

static void letter_free_payload(tm_storage *s) { tm_free_aligned(s->data, s->size); }

tm_status tm_letter_open(tm_letter_in *in, tm_message *m) {
  memset(in, 0, sizeof *in);
  tm_unpack_init(&in->r, m->meta, m->f.meta_bytes);
  if (!m->payload) return TM_OK;
  TM_TRY(tm_storage_wrap(m->payload, (size_t)m->f.payload_bytes, letter_free_payload,
                         NULL, &in->payload));
  m->payload = NULL;
  return TM_OK;
}

void tm_letter_close(tm_letter_in *in) {
  tm_storage_unref(in->payload);
  in->payload = NULL;
}

static tm_tensor *letter_over(tm_letter_in *in) {
  tm_view v;
  tm_tensor *t = NULL;
  tm_type_unpack(&in->r, &v.dtype, &v.shape);
  if (in->r.status) return NULL;
  uint64_t n = tm_view_bytes(&v), size = in->payload ? in->payload->size : 0;
  if (n == 0 || n > size - in->at) {
    tm_unpack_fail(&in->r, "describes more payload than came");
    return NULL;
  }
  uint8_t *p = (uint8_t *)in->payload->data + in->at;
  in->at += tm_frame_pad(n) < size - in->at ? tm_frame_pad(n) : size - in->at;
  tm_status s = tm_tensor_over(in->payload, v.dtype, &v.shape, p, &t);
  if (s) in->r.status = s;
  return t;
}

tm_tensor *tm_letter_take(tm_letter_in *in) {
  tm_tensor *t = NULL;
  uint32_t n = tm_unpack_array(&in->r, 2, 3);
  bool out = tm_unpack_bool(&in->r);
  if (in->r.status == TM_OK && n != (out ? 3u : 2u))
    tm_unpack_fail(&in->r, "has a tensor of the wrong length");
  if (in->r.status) return NULL;
  if (out) return letter_over(in);
  tm_status s = tm_unpack_tensor(&in->r, TM_FRAME_MAX_META, &t, NULL);
  if (s == TM_ENOMEM) in->r.status = s;
  if (s) tm_unpack_fail(&in->r, "has a malformed tensor");
  return s ? NULL : t;
}

tm_status tm_letter_end(tm_letter_in *in, tm_err *err) {
  if (in->r.status == TM_ENOMEM) return tm_nomem(err, "a message");
  return tm_unpack_end(&in->r, err);
}
