#include "watch/event.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "ckpt/file.h"
#include "watch/event.pb-c.h"
#include "watch/png.h"
#include "watch/record.h"

/*
 * Design.  A record is one Event with one value.  The messages are built on the stack
 * and packed straight into the file's buffer; protobuf-c allocates nothing for that.
 *
 * Scalars and histograms have TensorFlow 1's form, which every reader knows and
 * TensorBoard turns into the newer one; images and text, where the older form holds one
 * item, have TensorFlow 2's: a string tensor marked for its plugin.
 *
 * Invariants:
 *   (1) The first record of a file is its version.
 *   (2) No two writers, of any process, have one file: it is made with O_EXCL.
 *   (3) Strings in a record are valid UTF-8, or no reader of protocol buffers took it.
 */
enum {
  EVENT_TRIES = 1000,
  EVENT_SUFFIX = 64,
  EVENT_TEXTS = 65536,
  EVENT_FLOAT = 1, /* DataType */
  EVENT_STRING = 7,
  EVENT_TENSOR = 2, /* DataClass */
  EVENT_BLOBS = 3
};
#define EVENT_VERSION "brain.Event:2"

struct tm_event_writer {
  tm_record_file *file;
  int64_t flush_ns, flushed; /* how often; when last */
};

/* --- words --- */

/* Length of the UTF-8 sequence at p, 0 when there is none in n bytes. */
static size_t utf8_length(const uint8_t *p, size_t n) {
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  size_t len = p[0] < 0x80   ? 1
               : p[0] < 0xC2 ? 0
               : p[0] < 0xE0 ? 2
               : p[0] < 0xF0 ? 3
                             : 4;
  if (len < 2) return len;
  if (len > n || p[0] > 0xF4) return 0;
  uint32_t code = p[0] & (0x7Fu >> len);
  for (size_t i = 1; i < len; i++) {
    if ((p[i] & 0xC0) != 0x80) return 0;
    code = code << 6 | (p[i] & 0x3Fu);
  }
  bool surrogate = code >= 0xD800 && code < 0xE000;
  return code < least[len] || code > 0x10FFFF || surrogate ? 0 : len;
}

/* (3) */
static bool event_is_text(tm_str s, bool one_line) {
  const uint8_t *p = (const uint8_t *)s.p;
  for (size_t i = 0, len; i < s.n; i += len) {
    if (one_line && (p[i] < 0x20 || p[i] == 0x7F)) return false;
    len = utf8_length(p + i, s.n - i);
    if (len == 0) return false;
  }
  return true;
}

/* The tag as a C string into out. */
static tm_status event_tag(const tm_event_tag *at, char out[TM_EVENT_TAG + 1],
                           tm_err *err) {
  if (at->tag.n == 0)
    return tm_fail(err, TM_EINVAL, "the tag is empty; give a name such as \"loss\"");
  if (at->tag.n > TM_EVENT_TAG)
    return tm_fail(err, TM_EINVAL, "tag \"%.60s...\": %zu bytes, at most %d", at->tag.p,
                   at->tag.n, TM_EVENT_TAG);
  if (!event_is_text(at->tag, true))
    return tm_fail(err, TM_EINVAL,
                   "a tag of %zu bytes at step %" PRId64
                   " is not UTF-8 in one line; use letters, digits, \"_\" and \"/\"",
                   at->tag.n, at->step);
  memcpy(out, at->tag.p, at->tag.n);
  out[at->tag.n] = '\0';
  return TM_OK;
}

/* --- records --- */

static double event_wall_time(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static tm_status event_put(tm_event_writer *w, TmPb__Event *e, tm_err *err) {
  void *p;
  e->wall_time = event_wall_time();
  TM_TRY(tm_record_begin(w->file, tm_pb__event__get_packed_size(e), &p, err));
  tm_pb__event__pack(e, p);
  tm_record_end(w->file);
  return TM_OK;
}

static tm_status event_put_value(tm_event_writer *w, int64_t step, TmPb__Value *v,
                                 tm_err *err) {
  TmPb__Summary summary = TM_PB__SUMMARY__INIT;
  TmPb__Event e = TM_PB__EVENT__INIT;
  if (tm_now_ns() - w->flushed >= w->flush_ns) TM_TRY(tm_event_flush(w, err));
  summary.n_value = 1;
  summary.value = &v;
  e.step = step;
  e.what_case = TM_PB__EVENT__WHAT_SUMMARY;
  e.summary = &summary;
  return event_put(w, &e, err);
}

/* --- open and close --- */

/* What of the host's name may stand in a file's. */
static void event_host(char *out, size_t size) {
  if (gethostname(out, size) < 0 || !*out) snprintf(out, size, "localhost");
  out[size - 1] = '\0';
  for (char *c = out; *c; c++)
    if (*c == '/' || (unsigned char)*c <= ' ') *c = '_';
}

static tm_status event_create(const char *dir, const char *suffix, tm_record_file **out,
                              tm_err *err) {
  static atomic_uint number;
  char host[65], name[256], path[TM_PATH_MAX];
  tm_status s = TM_EEXISTS;
  event_host(host, sizeof host);
  for (int i = 0; s == TM_EEXISTS && i < EVENT_TRIES; i++) { /* (2) */
    snprintf(name, sizeof name, "events.out.tfevents.%010lld.%s.%ld.%u%.64s",
             (long long)time(NULL), host, (long)getpid(), atomic_fetch_add(&number, 1),
             suffix);
    TM_TRY(tm_path_join(path, dir, name, err));
    s = tm_record_create(path, out, err);
  }
  return s;
}

static tm_status event_check_suffix(const char *suffix, tm_err *err) {
  tm_str s = {suffix, strlen(suffix)};
  if (s.n <= EVENT_SUFFIX && event_is_text(s, true) && !strchr(suffix, '/'))
    return TM_OK;
  return tm_fail(err, TM_EINVAL,
                 "the suffix of an event file's name has at most %d bytes and no \"/\"",
                 EVENT_SUFFIX);
}

tm_status tm_event_open(const char *dir, const char *suffix, int64_t flush_ms,
                        tm_event_writer **out, tm_err *err) {
  TmPb__Event e = TM_PB__EVENT__INIT;
  *out = NULL;
  TM_TRY(event_check_suffix(suffix, err));
  tm_status s = tm_dir_make(dir, err);
  if (s)
    return tm_err_prefix(err, s,
                         "event files go to a directory that can be written to");
  tm_event_writer *w = tm_calloc(1, sizeof *w);
  if (!w) return tm_nomem(err, dir);
  w->flush_ns = flush_ms * 1000000;
  w->flushed = tm_now_ns();
  e.what_case = TM_PB__EVENT__WHAT_FILE_VERSION;
  e.file_version = (char[]){EVENT_VERSION};
  s = event_create(dir, suffix, &w->file, err);
  if (s == TM_OK) s = event_put(w, &e, err); /* (1) */
  if (s == TM_OK) s = tm_record_flush(w->file, err);
  if (s) {
    tm_event_close(w, NULL);
    return s;
  }
  *out = w;
  return TM_OK;
}

tm_status tm_event_flush(tm_event_writer *w, tm_err *err) {
  TM_TRY(tm_record_flush(w->file, err));
  w->flushed = tm_now_ns();
  return TM_OK;
}

const char *tm_event_path(const tm_event_writer *w) { return tm_record_path(w->file); }

tm_status tm_event_close(tm_event_writer *w, tm_err *err) {
  if (!w) return TM_OK;
  tm_status s = tm_record_close(w->file, err);
  tm_free(w, sizeof *w);
  return s;
}

/* --- numbers --- */

tm_status tm_event_scalar(tm_event_writer *w, const tm_event_tag *at, double x,
                          tm_err *err) {
  char tag[TM_EVENT_TAG + 1];
  TmPb__Value v = TM_PB__VALUE__INIT;
  TM_TRY(event_tag(at, tag, err));
  v.tag = tag;
  v.value_case = TM_PB__VALUE__VALUE_SIMPLE_VALUE;
  v.simple_value = (float)x;
  return event_put_value(w, at->step, &v, err);
}

/* Least, greatest, number and sums of the finite elements. */
static void histogram_sums(TmPb__HistogramProto *h, const tm_view *x, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    double v = tm_view_get_f64(x, i);
    if (!isfinite(v)) continue;
    if (h->num == 0 || v < h->min) h->min = v;
    if (h->num == 0 || v > h->max) h->max = v;
    h->num += 1;
    h->sum += v;
    h->sum_squares += v * v;
  }
}

/* All of one value: it is in the last bucket, and every bucket is of no width.  A range
 * wider than a double holds is counted at half its size. */
static void histogram_fill(TmPb__HistogramProto *h, const tm_view *x, int64_t n) {
  double k = (double)h->n_bucket, half = isfinite(h->max - h->min) ? 1 : 0.5;
  double low = h->min * half, range = h->max * half - low;
  size_t last = h->n_bucket - 1;
  for (size_t b = 0; b < last; b++)
    h->bucket_limit[b] = (low + range * ((double)(b + 1) / k)) / half;
  h->bucket_limit[last] = h->max;
  for (int64_t i = 0; i < n; i++) {
    double v = tm_view_get_f64(x, i);
    if (!isfinite(v)) continue;
    size_t b = range > 0 ? (size_t)((v * half - low) / range * k) : last;
    h->bucket[b < last ? b : last] += 1;
  }
}

tm_status tm_event_histogram(tm_event_writer *w, const tm_event_tag *at,
                             const tm_view *x, int32_t buckets, tm_err *err) {
  char tag[TM_EVENT_TAG + 1];
  double limit[TM_EVENT_BUCKETS] = {0}, count[TM_EVENT_BUCKETS] = {0};
  TmPb__HistogramProto h = TM_PB__HISTOGRAM_PROTO__INIT;
  TmPb__Value v = TM_PB__VALUE__INIT;
  TM_DCHECK(buckets > 0 && buckets <= TM_EVENT_BUCKETS);
  TM_TRY(event_tag(at, tag, err));
  if (x->dtype == TM_STRING)
    return tm_fail(err, TM_EINVAL, "histogram \"%s\" of strings; it takes numbers",
                   tag);
  int64_t n = tm_view_count(x);
  h.n_bucket = h.n_bucket_limit = (size_t)buckets;
  h.bucket_limit = limit;
  h.bucket = count;
  histogram_sums(&h, x, n);
  if (h.num > 0) histogram_fill(&h, x, n);
  v.tag = tag;
  v.value_case = TM_PB__VALUE__VALUE_HISTO;
  v.histo = &h;
  return event_put_value(w, at->step, &v, err);
}

/* --- string tensors: images and text --- */

typedef struct event_blobs {
  const char *plugin;
  int32_t data_class;
  int32_t rank;
  int64_t dim[2];
  size_t n;
  ProtobufCBinaryData *data;
} event_blobs;

static tm_status event_put_blobs(tm_event_writer *w, int64_t step, char *tag,
                                 const event_blobs *b, tm_err *err) {
  TmPb__Dim dim[2] = {TM_PB__DIM__INIT, TM_PB__DIM__INIT}, *dims[2] = {dim, dim + 1};
  TmPb__TensorShapeProto shape = TM_PB__TENSOR_SHAPE_PROTO__INIT;
  TmPb__TensorProto t = TM_PB__TENSOR_PROTO__INIT;
  TmPb__PluginData plugin = TM_PB__PLUGIN_DATA__INIT;
  TmPb__SummaryMetadata meta = TM_PB__SUMMARY_METADATA__INIT;
  TmPb__Value v = TM_PB__VALUE__INIT;
  char name[16];
  for (int i = 0; i < b->rank; i++) dim[i].size = b->dim[i];
  shape.n_dim = (size_t)b->rank;
  shape.dim = dims;
  t.dtype = EVENT_STRING;
  t.tensor_shape = &shape;
  t.n_string_val = b->n;
  t.string_val = b->data;
  snprintf(name, sizeof name, "%s", b->plugin);
  plugin.plugin_name = name;
  meta.plugin_data = &plugin;
  meta.data_class = b->data_class;
  v.tag = tag;
  v.metadata = &meta;
  v.value_case = TM_PB__VALUE__VALUE_TENSOR;
  v.tensor = &t;
  return event_put_value(w, step, &v, err);
}

typedef struct event_pixels {
  int64_t n, h, w, c;
} event_pixels;

static bool image_is_pixels(tm_dtype t) {
  return t == TM_U8 || t == TM_BOOL || tm_dtype_is_float(t);
}

static bool image_sizes(const tm_shape *s, event_pixels *out) {
  int32_t r = s->rank;
  if (r < 2 || r > 4) return false;
  const int64_t *d = s->dim + (r == 4 ? 1 : 0);
  *out = (event_pixels){r == 4 ? s->dim[0] : 1, d[0], d[1], r == 2 ? 1 : d[2]};
  bool small = out->h <= TM_RECORD_MAX && out->w <= TM_RECORD_MAX;
  return small && out->n >= 1 && out->h >= 1 && out->w >= 1 && out->c >= 1 &&
         out->c <= 4;
}

static tm_status image_shape(const char *tag, const tm_view *x, event_pixels *out,
                             tm_err *err) {
  char text[128];
  if (!image_is_pixels(x->dtype))
    return tm_fail(err, TM_EINVAL,
                   "image \"%s\" of %s; it takes uint8 from 0 to 255 or floats from 0 "
                   "to 1: cast it",
                   tag, tm_dtype_name(x->dtype));
  if (image_sizes(&x->shape, out)) return TM_OK;
  return tm_fail(err, TM_EINVAL,
                 "image \"%s\" of shape %s; it takes (height, width), (height, width, "
                 "channels) or (images, height, width, channels), 1 to 4 channels",
                 tag, tm_shape_text(&x->shape, text, sizeof text));
}

static uint8_t image_byte(const tm_view *x, int64_t i) {
  double v = tm_view_get_f64(x, i);
  if (x->dtype == TM_BOOL) return v != 0 ? 255 : 0;
  if (!(v > 0)) return 0; /* NaN too */
  return v >= 1 ? 255 : (uint8_t)(v * 255 + 0.5);
}

/* Image k as a PNG behind what out has. */
static tm_status image_encode(const tm_view *x, const event_pixels *p, int64_t k,
                              tm_buf *out) {
  int64_t size = p->h * p->w * p->c;
  void *bytes;
  if (x->dtype == TM_U8)
    return tm_png_encode((const uint8_t *)x->data + k * size, (uint32_t)p->h,
                         (uint32_t)p->w, (uint32_t)p->c, out);
  tm_buf pixels = TM_BUF_INIT(TM_RECORD_MAX);
  tm_status s = tm_buf_grow(&pixels, (size_t)size, &bytes);
  for (int64_t i = 0; s == TM_OK && i < size; i++)
    pixels.data[i] = image_byte(x, k * size + i);
  if (s == TM_OK)
    s = tm_png_encode(pixels.data, (uint32_t)p->h, (uint32_t)p->w, (uint32_t)p->c, out);
  tm_buf_release(&pixels);
  return s;
}

/* What TensorBoard wants of a list of images: width, height, then the files. */
static tm_status image_put(tm_event_writer *w, int64_t step, char *tag,
                           const event_pixels *p, const tm_buf *files,
                           const size_t *end, tm_err *err) {
  ProtobufCBinaryData data[TM_EVENT_IMAGES + 2];
  char size[2][24];
  event_blobs b = {"images", EVENT_BLOBS, 1, {p->n + 2, 0}, (size_t)p->n + 2, data};
  snprintf(size[0], sizeof size[0], "%" PRId64, p->w);
  snprintf(size[1], sizeof size[1], "%" PRId64, p->h);
  for (int i = 0; i < 2; i++)
    data[i] = (ProtobufCBinaryData){strlen(size[i]), (uint8_t *)size[i]};
  for (int64_t k = 0; k < p->n; k++) {
    size_t from = k ? end[k - 1] : 0;
    data[k + 2] = (ProtobufCBinaryData){end[k] - from, files->data + from};
  }
  return event_put_blobs(w, step, tag, &b, err);
}

tm_status tm_event_image(tm_event_writer *w, const tm_event_tag *at, const tm_view *x,
                         int32_t most, tm_err *err) {
  char tag[TM_EVENT_TAG + 1];
  size_t end[TM_EVENT_IMAGES];
  event_pixels p = {0, 0, 0, 0};
  TM_DCHECK(most > 0 && most <= TM_EVENT_IMAGES);
  TM_TRY(event_tag(at, tag, err));
  TM_TRY(image_shape(tag, x, &p, err));
  if (p.n > most) p.n = most;
  tm_buf files = TM_BUF_INIT(TM_RECORD_MAX);
  tm_status s = TM_OK;
  for (int64_t k = 0; s == TM_OK && k < p.n; k++) {
    s = image_encode(x, &p, k, &files);
    end[k] = files.len;
  }
  if (s == TM_ENOMEM)
    s = tm_nomem(err, tag);
  else if (s)
    s = tm_fail(err, s, "image \"%s\" has more than %d MB; log a smaller one", tag,
                TM_RECORD_MAX >> 20);
  else
    s = image_put(w, at->step, tag, &p, &files, end, err);
  tm_buf_release(&files);
  return s;
}

static tm_status text_check(const char *tag, const tm_view *x, int64_t n, tm_err *err) {
  if (x->dtype != TM_STRING)
    return tm_fail(err, TM_EINVAL, "text \"%s\" of %s; it takes strings", tag,
                   tm_dtype_name(x->dtype));
  if (x->shape.rank > 2 || n > EVENT_TEXTS)
    return tm_fail(
        err, TM_EINVAL,
        "text \"%s\" takes a string, a list or a table of at most %d of them", tag,
        EVENT_TEXTS);
  for (int64_t i = 0; i < n; i++)
    if (!event_is_text(((const tm_str *)x->data)[i], false))
      return tm_fail(err, TM_EINVAL, "text \"%s\": string %" PRId64 " is not UTF-8",
                     tag, i + 1);
  return TM_OK;
}

tm_status tm_event_text(tm_event_writer *w, const tm_event_tag *at, const tm_view *x,
                        tm_err *err) {
  char tag[TM_EVENT_TAG + 1];
  int64_t n = tm_view_count(x);
  TM_TRY(event_tag(at, tag, err));
  TM_TRY(text_check(tag, x, n, err));
  event_blobs b = {"text", EVENT_TENSOR, x->shape.rank, {0, 0}, (size_t)n, NULL};
  for (int i = 0; i < b.rank; i++) b.dim[i] = x->shape.dim[i];
  size_t room = (size_t)n + 1; /* none is no allocation */
  b.data = tm_calloc(room, sizeof *b.data);
  if (!b.data) return tm_nomem(err, tag);
  for (int64_t i = 0; i < n; i++) {
    const tm_str *s = (const tm_str *)x->data + i;
    /* Only read: protobuf-c's type has no const. */
    b.data[i] = (ProtobufCBinaryData){s->n, (uint8_t *)(uintptr_t)s->p};
  }
  tm_status s = event_put_blobs(w, at->step, tag, &b, err);
  tm_free(b.data, room * sizeof *b.data);
  return s;
}

/* --- graphs and what plugins keep --- */

tm_status tm_event_graph(tm_event_writer *w, tm_str graph, tm_err *err) {
  TmPb__Event e = TM_PB__EVENT__INIT;
  e.what_case = TM_PB__EVENT__WHAT_GRAPH_DEF;
  /* Only read: protobuf-c's type has no const. */
  e.graph_def = (ProtobufCBinaryData){graph.n, (uint8_t *)(uintptr_t)graph.p};
  return event_put(w, &e, err);
}

tm_status tm_event_plugin(tm_event_writer *w, const tm_event_tag *at,
                          const char *plugin, tm_str content, tm_err *err) {
  char tag[TM_EVENT_TAG + 1], name[32];
  TmPb__Dim none = TM_PB__DIM__INIT, *dims[1] = {&none};
  TmPb__TensorShapeProto shape = TM_PB__TENSOR_SHAPE_PROTO__INIT;
  TmPb__TensorProto t = TM_PB__TENSOR_PROTO__INIT;
  TmPb__PluginData data = TM_PB__PLUGIN_DATA__INIT;
  TmPb__SummaryMetadata meta = TM_PB__SUMMARY_METADATA__INIT;
  TmPb__Value v = TM_PB__VALUE__INIT;
  TM_TRY(event_tag(at, tag, err));
  shape.n_dim = 1;
  shape.dim = dims;
  t.dtype = EVENT_FLOAT;
  t.tensor_shape = &shape;
  snprintf(name, sizeof name, "%s", plugin);
  data.plugin_name = name;
  data.content = (ProtobufCBinaryData){content.n, (uint8_t *)(uintptr_t)content.p};
  meta.plugin_data = &data;
  v.tag = tag;
  v.metadata = &meta;
  v.value_case = TM_PB__VALUE__VALUE_TENSOR;
  v.tensor = &t;
  return event_put_value(w, at->step, &v, err);
}
