/*
 * letter.h - messages of the control plane: values in order, tensors among them.
 *
 * Small tensors and strings stand in the metadata, large ones are segments of the
 * payload: sent from where they lie, received over the frame's own memory.
 *
 *     tm_letter l; tm_letter_init(&l);
 *     tm_pack_uint(&l.w, id); tm_letter_tensor(&l, t);
 *     s = tm_letter_send(&l, conn, TM_F_DONE, 0);     -- also releases it
 *
 * Ownership: the caller's structs.  Threads: one at a time.
 */
#ifndef TM_CLUSTER_LETTER_H
#define TM_CLUSTER_LETTER_H

#include "cluster/segments.h"
#include "net/conn.h"
#include "tensor/tensor.h"

typedef struct tm_letter {
  tm_buf meta;
  tm_packer w; /* first error here */
  tm_segments seg;
  tm_tensor **held; /* of the segments */
  int32_t nheld, cap;
} tm_letter;

void tm_letter_init(tm_letter *l);
void tm_letter_release(tm_letter *l);
void tm_letter_tensor(tm_letter *l, tm_tensor *t);
/* A run of bytes of any length (copied). */
void tm_letter_bytes(tm_letter *l, const void *p, size_t n);
/* TM_EEXHAUSTED: too much metadata.  The letter is released both ways. */
TM_CHECKED tm_status tm_letter_send(tm_letter *l, tm_conn *c, tm_frame_kind kind,
                                    uint64_t id);

typedef struct tm_letter_in {
  tm_unpacker r;
  tm_storage *payload; /* may be NULL */
  uint64_t at;
} tm_letter_in;

/* Takes the payload of m (TM_ENOMEM: not). */
TM_CHECKED tm_status tm_letter_open(tm_letter_in *in, tm_message *m);
void tm_letter_close(tm_letter_in *in);
/* The next tensor, a reference; NULL after a failure (see in->r). */
tm_tensor *tm_letter_take(tm_letter_in *in);
/* All was read and all was well. */
TM_CHECKED tm_status tm_letter_end(tm_letter_in *in, tm_err *err);

#endif
