/*
 * channel.h - a connection that the calling thread drives: send a frame, wait for the
 * answer.  The data plane of a worker.
 *
 *     tm_channel_send(ch, &f, meta, seg, nseg, err);
 *     tm_channel_head(ch, &f, &meta, err);       -- meta points into the channel
 *     tm_channel_take(ch, dst, n, err);           -- payload, straight to its place
 *     tm_channel_end(ch, err);                    -- what is left is skipped
 *
 * Waits spin briefly before they sleep, and end after `silence_ns` without a byte, or
 * when `cancel` is set.  After any failure the channel is broken: close it.
 *
 * Ownership: the caller's.  Threads: one at a time.
 */
#ifndef TM_NET_CHANNEL_H
#define TM_NET_CHANNEL_H

#include "base/cancel.h"
#include "net/frame.h"

typedef struct tm_channel tm_channel;

typedef struct tm_segment {
  const void *p;
  uint64_t n;
} tm_segment;

typedef struct tm_channel_options {
  const char *address;
  const char *expect_task; /* the task that should be there; NULL: any */
  tm_hello self;
  int64_t connect_timeout_ns; /* 0: 10 s */
  int64_t silence_ns;         /* 0: for ever */
  int64_t spin_ns;            /* < 0: the default (20 us, none on one core) */
  uint64_t max_payload;       /* of a frame that comes in; 0: 1 TB */
  bool no_unix;
  bool retry;        /* until connect_timeout while nobody listens there (yet) */
  tm_cancel *cancel; /* may be NULL */
  tm_cancel *lost;   /* may be NULL: set when the peer is known to be gone */
  bool *cut; /* may be NULL; out: somebody was there, but the connection ended */
} tm_channel_options;

/* Connect and say hello. */
TM_CHECKED tm_status tm_channel_open(const tm_channel_options *opt, tm_channel **out,
                                     tm_err *err);
void tm_channel_close(tm_channel *ch); /* ch may be NULL */
const tm_hello *tm_channel_peer(const tm_channel *ch);
bool tm_channel_is_unix(const tm_channel *ch);
bool tm_channel_broken(const tm_channel *ch);
/* Broken because the connection ended, not by silence, a flag, or what came. */
bool tm_channel_cut(const tm_channel *ch);
void tm_channel_set_silence(tm_channel *ch, int64_t ns);

/* The byte counts of f are filled here.  Segments go out from where they lie. */
TM_CHECKED tm_status tm_channel_send(tm_channel *ch, tm_frame *f, const tm_buf *meta,
                                     const tm_segment *seg, int32_t nseg, tm_err *err);
/* Wait for a frame (heartbeats are passed over).  *meta is valid until the next head.
 */
TM_CHECKED tm_status tm_channel_head(tm_channel *ch, tm_frame *f, const uint8_t **meta,
                                     tm_err *err);
/* The next segment of the payload, n bytes, to dst (NULL: nowhere); its padding is
 * skipped.  TM_EDATALOSS: the payload is shorter. */
TM_CHECKED tm_status tm_channel_take(tm_channel *ch, void *dst, uint64_t n,
                                     tm_err *err);
/* The same without skipping the padding: a piece of a segment. */
TM_CHECKED tm_status tm_channel_piece(tm_channel *ch, void *dst, uint64_t n,
                                      tm_err *err);
TM_CHECKED tm_status tm_channel_end(tm_channel *ch, tm_err *err);
/* The socket of an idle channel, for a loop to go on with; bytes that came already are
 * appended to rest.  The channel is freed, also on failure (then *fd is -1). */
TM_CHECKED tm_status tm_channel_detach(tm_channel *ch, tm_buf *rest, int *fd);

#endif
