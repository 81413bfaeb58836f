/*
 * event.h - TensorBoard's event files: numbers, histograms, images, text by step, and
 * graphs.
 *
 *     tm_event_writer *w;
 *     tm_event_tag at = {{"train/loss", 10}, step};
 *     TM_TRY(tm_event_open("logs/run1", "", 2000, &w, err));
 *     TM_TRY(tm_event_scalar(w, &at, 0.25, err));
 *     TM_TRY(tm_event_close(w, err));
 *
 * A writer has a file of its own, "events.out.tfevents.SECONDS.HOST.PID.NUMBER", that
 * no other writer has, so many may write into one directory.  Records wait in a bounded
 * buffer (record.h) until it is full, they are flushed, or one comes `flush_ms` after
 * the last flush.  A record that fails is not in the file and may be given again.
 *
 * Tags are UTF-8 of 1 to TM_EVENT_TAG bytes without control characters; "/" groups
 * them.
 *
 * Ownership: open gives the writer, close frees it; what is logged is copied.
 * Threads:   one at a time.
 */
#ifndef TM_WATCH_EVENT_H
#define TM_WATCH_EVENT_H

#include "tensor/tensor.h"

enum {
  TM_EVENT_TAG = 1024,    /* bytes of a tag */
  TM_EVENT_BUCKETS = 512, /* of a histogram, at most */
  TM_EVENT_IMAGES = 64    /* of one record, at most */
};

typedef struct tm_event_writer tm_event_writer;

typedef struct tm_event_tag {
  tm_str tag;
  int64_t step;
} tm_event_tag;

/* The directory is made where it is missing.  suffix ends the file's name. */
TM_CHECKED tm_status tm_event_open(const char *dir, const char *suffix,
                                   int64_t flush_ms, tm_event_writer **out,
                                   tm_err *err);
/* Any value, NaN and infinities too; kept as float32, as TensorBoard does. */
TM_CHECKED tm_status tm_event_scalar(tm_event_writer *w, const tm_event_tag *at,
                                     double x, tm_err *err);
/* `buckets` (1..TM_EVENT_BUCKETS) of equal width from the least to the greatest
 * element; elements that are not finite are left out.  Strings are TM_EINVAL. */
TM_CHECKED tm_status tm_event_histogram(tm_event_writer *w, const tm_event_tag *at,
                                        const tm_view *x, int32_t buckets, tm_err *err);
/* (h, w), (h, w, c) or (n, h, w, c) with 1 to 4 channels: uint8, bool, or floats from 0
 * (black) to 1, which are clipped; NaN is black.  The first `most` (1..TM_EVENT_IMAGES)
 * of n are kept. */
TM_CHECKED tm_status tm_event_image(tm_event_writer *w, const tm_event_tag *at,
                                    const tm_view *x, int32_t most, tm_err *err);
/* A string, list or table (rank 0 to 2) of UTF-8 strings, shown as Markdown. */
TM_CHECKED tm_status tm_event_text(tm_event_writer *w, const tm_event_tag *at,
                                   const tm_view *x, tm_err *err);
/* A serialised GraphDef: what TensorBoard shows under "Graphs". */
TM_CHECKED tm_status tm_event_graph(tm_event_writer *w, tm_str graph, tm_err *err);
/* What a plugin of TensorBoard keeps beside a tag: a tensor of no elements whose
 * description has these bytes. */
TM_CHECKED tm_status tm_event_plugin(tm_event_writer *w, const tm_event_tag *at,
                                     const char *plugin, tm_str content, tm_err *err);
TM_CHECKED tm_status tm_event_flush(tm_event_writer *w, tm_err *err);
const char *tm_event_path(const tm_event_writer *w); /* of its file */
/* w may be NULL; it is freed whatever fails. */
tm_status tm_event_close(tm_event_writer *w, tm_err *err);

#endif
