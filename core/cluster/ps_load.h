/*
 * ps_load.h - a ps reads its part of a checkpoint itself.
 *
 * The chief says which rows of which tensors go where (ps/client.h).  A ps that finds
 * the same checkpoint under that path reads them, 8 MB at a time (a dense shard of up
 * to 64 MB at once, so that it changes at one moment), in a thread of the request's
 * own: the loops go on serving.  One that does not find it says so, and the chief sends
 * the rows.
 *
 * Ownership: the loader is the service's.  Threads: message from any loop thread; `put`
 * is called from any.
 */
#ifndef TM_CLUSTER_PS_LOAD_H
#define TM_CLUSTER_PS_LOAD_H

#include "base/arena.h"
#include "base/pack.h"
#include "ckpt/reader.h"
#include "net/conn.h"
#include "ps/client.h"

enum { TM_LOAD_PIECE = 8 << 20, TM_LOAD_WHOLE = 64 << 20, TM_LOAD_ITEMS = 65536 };

/* As metadata. */
void tm_ps_load_pack(tm_packer *w, const tm_ps_load *l);
void tm_ps_put_pack(tm_packer *w, const tm_ps_place *p, const tm_view *rows);

/* Takes rows of one place. */
typedef tm_status (*tm_load_put)(void *ud, const tm_ps_place *p, const tm_view *rows,
                                 tm_err *err);

/* Give out rows of a tensor in pieces of at most `bytes` (one row at least). */
TM_CHECKED tm_status tm_load_rows(tm_ckpt_reader *r, const tm_ckpt_tensor *t,
                                  const tm_ps_load_item *item, uint64_t bytes,
                                  tm_cancel *cancel, tm_load_put put, void *ud,
                                  tm_err *err);

typedef struct tm_ps_loader tm_ps_loader;

TM_CHECKED tm_status tm_ps_loader_new(tm_load_put put, void *ud, tm_ps_loader **out);
/* Ends what it is reading; l may be NULL. */
void tm_ps_loader_free(tm_ps_loader *l);
/* A PS_LOAD frame; it will be answered. A failure is the caller's to answer. */
TM_CHECKED tm_status tm_ps_loader_message(tm_ps_loader *l, tm_conn *c, tm_message *m,
                                          tm_err *err);
/* Rows that came with a PS_LOAD frame; it is not answered. */
TM_CHECKED tm_status tm_ps_loader_put(tm_ps_loader *l, const tm_message *m,
                                      tm_err *err);

#endif
