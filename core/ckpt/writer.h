/*
 * writer.h - a checkpoint being written: a directory that appears whole or not at all.
 *
 *     TM_TRY(tm_ckpt_create("runs/ckpt-7", &w, err));
 *     TM_TRY(tm_ckpt_put(w, "model/kernel", &shape, 0, tensor, err));
 *     TM_TRY(tm_ckpt_value_int(w, "epoch", 3, err));
 *     TM_TRY(tm_ckpt_commit(w, err));       -- durable, under its name
 *     tm_ckpt_writer_free(w);               -- without a commit: no trace is left
 *
 * The directory holds data-00000.safetensors ... and checkpoint.json:
 *
 *     { "crc32c", "format": "tidemill checkpoint", "version": 1,
 *       "files":   [{ "name", "size", "crc32c" }],
 *       "tensors": { name: { "dtype", "shape",
 *                            "shards": [{ "file", "entry", "first", "rows" }],
 *                            "patches": [{ "file", "ids", "rows", "n" }] } },
 *       "values":  { name: number | bool | string | { "number": "inf" } | { "hex" } } }
 *
 * Strings, which the data files cannot hold, are kept as an array of bytes: the length
 * of each, 4 bytes little-endian, then all bytes; "dtype" is "string".
 *
 * A tensor may come in pieces of its first axis, from row 0 on, each behind the last.
 * Tensors are held until 32 MB are together (one larger than that alone), then written
 * as a file: that is what a save takes of memory.
 *
 * While it is written the directory is called NAME.tmp-<16 hex digits>, and held
 * (tm_dir_hold).  One that nobody holds is what a process left that ended: sweep()
 * takes it away.
 *
 * Ownership: the writer keeps references to tensors until they are written.
 * Threads:   one at a time.
 */
#ifndef TM_CKPT_WRITER_H
#define TM_CKPT_WRITER_H

#include <jansson.h>

#include "base/status.h"
#include "tensor/tensor.h"

enum {
  TM_CKPT_BATCH_BYTES = 32 << 20,
  TM_CKPT_VERSION = 2, /* 2: has patches; else 1 is written */
  TM_CKPT_FILE_NAME = 40,
  TM_CKPT_MAX_NAME = 2048,
  TM_CKPT_ENTRY_NAME = TM_CKPT_MAX_NAME + 32
};
#define TM_CKPT_INDEX "checkpoint.json"
/* What the directory of a model has beside: its description (tm_ckpt_attach), and one
 * data file for all of an exported one. */
#define TM_CKPT_MODEL      "model.json"
#define TM_CKPT_MODEL_DATA "model.safetensors"

typedef struct tm_ckpt_writer tm_ckpt_writer;

/* Begin.  The parent directory is made where it is missing.  TM_EINVAL: the path is a
 * file.  TM_EEXISTS: a directory with something else in it and no checkpoint. */
TM_CHECKED tm_status tm_ckpt_create(const char *path, tm_ckpt_writer **out,
                                    tm_err *err);
/* Rows first.. of the tensor `name` of the full shape. */
TM_CHECKED tm_status tm_ckpt_put(tm_ckpt_writer *w, const char *name,
                                 const tm_shape *shape, int64_t first, tm_tensor *t,
                                 tm_err *err);
TM_CHECKED tm_status tm_ckpt_value_int(tm_ckpt_writer *w, const char *name, int64_t x,
                                       tm_err *err);
TM_CHECKED tm_status tm_ckpt_value_real(tm_ckpt_writer *w, const char *name, double x,
                                        tm_err *err);
TM_CHECKED tm_status tm_ckpt_value_bool(tm_ckpt_writer *w, const char *name, bool x,
                                        tm_err *err);
/* Any bytes. */
TM_CHECKED tm_status tm_ckpt_value_str(tm_ckpt_writer *w, const char *name,
                                       const char *p, size_t n, tm_err *err);
/* A data file that somebody else writes into the directory: its name there, under which
 * it is to be found when the checkpoint is committed.  filled() says what came of it.
 */
TM_CHECKED tm_status tm_ckpt_reserve(tm_ckpt_writer *w, char name[TM_CKPT_FILE_NAME],
                                     size_t *file, tm_err *err);
TM_CHECKED tm_status tm_ckpt_filled(tm_ckpt_writer *w, size_t file, uint64_t size,
                                    uint32_t crc, tm_err *err);
/* The same under a name that the caller chooses, TM_CKPT_MODEL_DATA. */
TM_CHECKED tm_status tm_ckpt_reserve_as(tm_ckpt_writer *w, const char *name,
                                        size_t *file, tm_err *err);
/* As put, for rows that are in a reserved file, as the entry tm_ckpt_entry. */
TM_CHECKED tm_status tm_ckpt_note(tm_ckpt_writer *w, const char *name,
                                  const tm_shape *shape, tm_dtype dtype, int64_t first,
                                  int64_t rows, size_t file, tm_err *err);
void tm_ckpt_entry(char out[TM_CKPT_ENTRY_NAME], const char *name,
                   const tm_shape *shape, int64_t first, int64_t rows);
/* Rows of a tensor that was noted whole, which stand before what was noted: n numbers
 * of rows, rising, and the rows, in a reserved file as the entries "ids" and "rows" of
 * tm_ckpt_patch_entry. */
TM_CHECKED tm_status tm_ckpt_note_patch(tm_ckpt_writer *w, const char *name,
                                        int64_t first, int64_t n, size_t file,
                                        tm_err *err);
void tm_ckpt_patch_entry(char out[TM_CKPT_ENTRY_NAME], const char *name,
                         const char *what, int64_t first);
/* Write TM_CKPT_MODEL beside the index, sealed (ckpt/sealed.h). */
TM_CHECKED tm_status tm_ckpt_attach(tm_ckpt_writer *w, json_t *model, tm_err *err);
/* The directory while it is written. */
const char *tm_ckpt_directory(const tm_ckpt_writer *w);
/* Write the rest and give the directory its name; one of that name is replaced.  The
 * writer takes nothing afterwards. */
TM_CHECKED tm_status tm_ckpt_commit(tm_ckpt_writer *w, tm_err *err);
void tm_ckpt_writer_free(tm_ckpt_writer *w); /* w may be NULL */

/* Remove a checkpoint: its name is gone first, so a half-removed one is never seen.
 * Files that are not its own stay. */
TM_CHECKED tm_status tm_ckpt_remove(const char *path, tm_err *err);

/* Remove what ended saves of checkpoints NAME and NAME-... left in a directory.  What
 * cannot be removed stays. */
void tm_ckpt_sweep(const char *dir, const char *name);

#endif
