#include "cluster/snapshot_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/mem.h"
#include "ckpt/file.h"

/*
 * Design.  The parts are written in order.  Between two pieces the copies that writers
 * of rows made are looked at: when they fill half of their room, the oldest are written
 * at their places at once, so that no writer waits while the disk keeps up.
 *
 * Invariant: `offset` of a part is where its bytes lie in the file; parts that are not
 * there have no name and no bytes.
 */
typedef struct snapshot_file {
  tm_snapshot *sn;
  tm_snapshot_job *job;
  tm_cancel *cancel;
  tm_sink f;
  uint64_t *offset;
  void *room;
} snapshot_file;

/* --- the probe --- */

tm_status tm_snapshot_probe(const char *dir, char token[TM_SNAPSHOT_TOKEN],
                            tm_err *err) {
  char path[TM_PATH_MAX];
  tm_sink f;
  snprintf(token, TM_SNAPSHOT_TOKEN, "%016" PRIx64, tm_random_id());
  TM_TRY(tm_path_join(path, dir, TM_SNAPSHOT_PROBE, err));
  TM_TRY(tm_sink_open(&f, path, err));
  tm_status s = tm_sink_put(&f, token, TM_SNAPSHOT_TOKEN - 1, err);
  tm_sink_abort(&f);
  return s;
}

void tm_snapshot_unprobe(const char *dir) {
  char path[TM_PATH_MAX];
  if (tm_path_join(path, dir, TM_SNAPSHOT_PROBE, NULL) == TM_OK)
    tm_file_current()->unlink(path);
}

static bool file_is_seen(const tm_snapshot_job *job) {
  char path[TM_PATH_MAX];
  tm_buf b = TM_BUF_INIT(TM_SNAPSHOT_TOKEN);
  if (!job->token) return true;
  bool same = tm_path_join(path, job->dir, TM_SNAPSHOT_PROBE, NULL) == TM_OK &&
              tm_file_read(path, TM_SNAPSHOT_TOKEN, &b, NULL) == TM_OK &&
              b.len == strlen(job->token) && memcmp(b.data, job->token, b.len) == 0;
  tm_buf_release(&b);
  return same;
}

/* --- the file --- */

static int64_t file_rows(const tm_snapshot_part *p) {
  return p->shape.rank ? p->shape.dim[0] : 1;
}

static bool file_has_ids(const tm_snapshot_job *job, int32_t i) {
  return job->ids && job->ids[i];
}

/* Numbers of rows first, then the arrays. */
static size_t file_items(const snapshot_file *sf, tm_st_item *items) {
  const tm_snapshot_job *job = sf->job;
  size_t n = 0;
  for (int32_t i = 0; i < job->n; i++) {
    const tm_snapshot_part *p = tm_snapshot_part_at(sf->sn, i);
    if (p->there && file_has_ids(job, i))
      items[n++] =
          (tm_st_item){job->ids[i], TM_I64, tm_shape_of(1, (int64_t[]){file_rows(p)})};
  }
  for (int32_t i = 0; i < job->n; i++) {
    const tm_snapshot_part *p = tm_snapshot_part_at(sf->sn, i);
    if (p->there) items[n++] = (tm_st_item){job->name[i], p->dtype, p->shape};
  }
  return n;
}

static tm_status file_header(snapshot_file *sf, tm_err *err) {
  size_t room = 2 * (size_t)sf->job->n + 1;
  tm_st_item *items = tm_calloc(room, sizeof *items);
  if (!items) return tm_nomem(err, "a checkpoint");
  size_t n = file_items(sf, items);
  tm_buf head = TM_BUF_INIT(TM_ST_MAX_HEADER + TM_ST_ALIGN);
  tm_status s = tm_st_header(items, n, &head, err);
  if (s == TM_OK) s = tm_sink_put(&sf->f, head.data, head.len, err);
  tm_buf_release(&head);
  tm_free(items, room * sizeof *items);
  return s;
}

/* Numbers of the rows of part i. */
static tm_status file_ids(snapshot_file *sf, int32_t i, tm_err *err) {
  int64_t *id = sf->room;
  const size_t cap = TM_SNAPSHOT_WRITE / sizeof *id;
  int64_t all = file_rows(tm_snapshot_part_at(sf->sn, i));
  for (int64_t from = 0; from < all;) {
    size_t n = tm_snapshot_ids(sf->sn, i, from, id, cap);
    for (size_t k = 0; k < n; k++) id[k] += sf->job->first[i];
    TM_TRY(tm_sink_put(&sf->f, id, n * sizeof *id, err));
    from += (int64_t)n;
  }
  return TM_OK;
}

/* The header and the numbers; then the places of the arrays are known. */
static tm_status file_begin(snapshot_file *sf, tm_err *err) {
  TM_TRY(file_header(sf, err));
  for (int32_t i = 0; i < sf->job->n; i++)
    if (tm_snapshot_part_at(sf->sn, i)->there && file_has_ids(sf->job, i))
      TM_TRY(file_ids(sf, i, err));
  uint64_t at = sf->f.size;
  for (int32_t i = 0; i < sf->job->n; i++) {
    const tm_snapshot_part *p = tm_snapshot_part_at(sf->sn, i);
    sf->offset[i] = at;
    if (p->there) at += p->bytes;
  }
  return TM_OK;
}

static tm_status file_asides(snapshot_file *sf, tm_err *err) {
  tm_snapshot_aside a;
  while (tm_snapshot_take_aside(sf->sn, &a)) {
    tm_status s = tm_sink_put_at(&sf->f, a.p, a.n, sf->offset[a.part] + a.at, err);
    tm_snapshot_give_aside(sf->sn, &a, tm_crc32c(0, a.p, a.n));
    TM_TRY(s);
  }
  return TM_OK;
}

static tm_status file_part(snapshot_file *sf, int32_t i, tm_err *err) {
  uint64_t bytes = tm_snapshot_part_at(sf->sn, i)->bytes;
  for (uint64_t at = 0; at < bytes;) {
    tm_snapshot_piece p;
    if (tm_cancelled(sf->cancel))
      return tm_fail(err, TM_ECANCELLED, "the checkpoint was given up");
    TM_TRY(file_asides(sf, err));
    tm_snapshot_next(sf->sn, i, at, sf->room, TM_SNAPSHOT_WRITE, &p);
    TM_TRY(p.p ? tm_sink_put(&sf->f, p.p, p.n, err)
               : tm_sink_skip(&sf->f, p.n, p.crc, err));
    at += p.n;
  }
  tm_snapshot_drop(sf->sn, i);
  return TM_OK;
}

static tm_status file_write(snapshot_file *sf, tm_err *err) {
  TM_TRY(file_begin(sf, err));
  for (int32_t i = 0; i < sf->job->n; i++)
    if (tm_snapshot_part_at(sf->sn, i)->there) TM_TRY(file_part(sf, i, err));
  TM_TRY(tm_snapshot_status(sf->sn, err));
  TM_TRY(tm_sink_close(&sf->f, err));
  sf->job->size = sf->f.size;
  sf->job->crc = sf->f.crc;
  return TM_OK;
}

static tm_status file_check(const tm_snapshot *sn, const tm_snapshot_job *job,
                            tm_err *err) {
  bool fits = job->n == tm_snapshot_count(sn) && tm_path_is_name(job->file);
  for (int32_t i = 0; fits && i < job->n; i++)
    fits = !tm_snapshot_part_at(sn, i)->there || job->name[i];
  if (fits && job->ids && !job->first) fits = false;
  return fits ? TM_OK : tm_fail(err, TM_EINVAL, "a snapshot of other arrays");
}

static tm_status file_make(snapshot_file *sf, const char *path, tm_err *err) {
  size_t bytes = ((size_t)sf->job->n + 1) * sizeof *sf->offset;
  sf->offset = tm_malloc(bytes);
  sf->room = tm_malloc(TM_SNAPSHOT_WRITE);
  tm_status s = sf->offset && sf->room ? TM_OK : tm_nomem(err, "a checkpoint");
  if (s == TM_OK) s = file_write(sf, err);
  tm_sink_abort(&sf->f);
  if (s) tm_file_current()->unlink(path);
  tm_free(sf->offset, bytes);
  tm_free(sf->room, TM_SNAPSHOT_WRITE);
  return s;
}

tm_status tm_snapshot_write(tm_snapshot *sn, tm_snapshot_job *job, tm_cancel *cancel,
                            tm_err *err) {
  char path[TM_PATH_MAX];
  snapshot_file sf = {.sn = sn, .job = job, .cancel = cancel};
  TM_TRY(file_check(sn, job, err));
  job->unseen = !file_is_seen(job);
  if (job->unseen) return TM_OK;
  TM_TRY(tm_path_join(path, job->dir, job->file, err));
  tm_status s = tm_sink_open(&sf.f, path, err);
  if (s == TM_EPERM && job->token) {
    job->unseen = true; /* the chief may write there, this task may not */
    if (err) tm_err_clear(err);
    return TM_OK;
  }
  return s ? s : file_make(&sf, path, err);
}
