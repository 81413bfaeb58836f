#include "data/files.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

/*
 * Design.  A list of names that grows while patterns are resolved.
 *
 * Invariant: n <= TM_FILES_MAX and every name is shorter than TM_FILE_NAME.
 */
void tm_files_release(tm_files *f) {
  for (size_t i = 0; i < f->n; i++) tm_strfree(f->name[i]);
  if (f->cap) tm_free(f->name, f->cap * sizeof *f->name);
  f->name = NULL;
  f->n = f->cap = 0;
}

static tm_status files_add(tm_files *f, const char *name, size_t len, const char *who,
                           tm_err *err) {
  if (f->n == TM_FILES_MAX)
    return tm_fail(err, TM_EINVAL, "%s: more than %d files", who, TM_FILES_MAX);
  if (len == 0 || len >= TM_FILE_NAME)
    return tm_fail(err, TM_EINVAL, "%s: a file name of %zu bytes", who, len);
  if (f->n == f->cap) {
    size_t cap = f->cap ? 2 * f->cap : 8;
    void *p = tm_realloc(f->name, f->cap * sizeof *f->name, cap * sizeof *f->name);
    if (!p) return tm_nomem(err, who);
    f->name = p;
    f->cap = cap;
  }
  f->name[f->n] = tm_strndup(name, len);
  if (!f->name[f->n]) return tm_nomem(err, who);
  f->n++;
  return TM_OK;
}

static tm_status files_check(const char *name, const char *who, tm_err *err) {
  struct stat st;
  int fd = open(name, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &st) != 0) {
    int e = errno;
    if (fd >= 0) close(fd);
    if (e == EACCES)
      return tm_fail(err, TM_EPERM, "%s: no permission to read %s", who, name);
    return tm_fail(err, TM_ENOTFOUND, "%s: cannot open %s: %s", who, name, strerror(e));
  }
  close(fd);
  if (S_ISDIR(st.st_mode))
    return tm_fail(err, TM_EINVAL, "%s: %s is a directory; give a pattern like %s/*",
                   who, name, name);
  return TM_OK;
}

static tm_status files_glob(tm_files *f, const char *pattern, const char *who,
                            tm_err *err) {
  glob_t g;
  int r = glob(pattern, 0, NULL, &g);
  if (r == GLOB_NOSPACE) return tm_nomem(err, who);
  if (r != 0) return tm_fail(err, TM_ENOTFOUND, "%s: no file matches %s", who, pattern);
  tm_status s = TM_OK;
  for (size_t i = 0; s == TM_OK && i < g.gl_pathc; i++)
    s = files_add(f, g.gl_pathv[i], strlen(g.gl_pathv[i]), who, err);
  globfree(&g);
  return s;
}

static tm_status files_compression(tm_files *f, const char *c, const char *who,
                                   tm_err *err) {
  f->compression = TM_COMPRESS_AUTO;
  if (!c || !*c) return TM_OK;
  if (strcmp(c, "gzip") == 0)
    f->compression = TM_COMPRESS_GZIP;
  else if (strcmp(c, "none") == 0)
    f->compression = TM_COMPRESS_NONE;
  else
    return tm_fail(err, TM_EINVAL,
                   "%s: compression is \"gzip\" or \"none\", not \"%s\"", who, c);
  return TM_OK;
}

static tm_status files_fill(tm_files *f, const char *const *names, size_t n, bool check,
                            const char *who, tm_err *err) {
  for (size_t i = 0; i < n; i++) {
    bool pattern = strpbrk(names[i], "*?[") && access(names[i], F_OK) != 0;
    if (pattern)
      TM_TRY(files_glob(f, names[i], who, err));
    else
      TM_TRY(files_add(f, names[i], strlen(names[i]), who, err));
  }
  if (f->n == 0) return tm_fail(err, TM_EINVAL, "%s: no files given", who);
  for (size_t i = 0; check && i < f->n; i++) TM_TRY(files_check(f->name[i], who, err));
  return TM_OK;
}

tm_status tm_files_init(tm_files *f, const char *const *names, size_t n,
                        const char *compression, bool check, const char *who,
                        tm_err *err) {
  memset(f, 0, sizeof *f);
  tm_status s = files_compression(f, compression, who, err);
  if (s == TM_OK) s = files_fill(f, names, n, check, who, err);
  if (s != TM_OK) tm_files_release(f);
  return s;
}

void tm_files_pack(const tm_files *f, tm_packer *w) {
  tm_pack_array(w, 2);
  tm_pack_int(w, f->compression);
  tm_pack_array(w, (uint32_t)f->n);
  for (size_t i = 0; i < f->n; i++) tm_pack_cstr(w, f->name[i]);
}

tm_status tm_files_unpack(tm_unpacker *r, tm_files *f, tm_err *err) {
  memset(f, 0, sizeof *f);
  tm_unpack_array(r, 2, 2);
  f->compression =
      (tm_compression)tm_unpack_range(r, TM_COMPRESS_AUTO, TM_COMPRESS_NONE);
  uint32_t n = tm_unpack_array(r, 1, TM_FILES_MAX);
  tm_status s = TM_OK;
  for (uint32_t i = 0; s == TM_OK && i < n && r->status == TM_OK; i++) {
    size_t len = 0;
    const char *p = tm_unpack_str(r, TM_FILE_NAME - 1, &len);
    if (r->status == TM_OK && memchr(p, 0, len)) tm_unpack_fail(r, "NUL in a name");
    if (r->status == TM_OK) s = files_add(f, p, len, "files", err);
  }
  if (s == TM_OK && r->status != TM_OK)
    s = tm_fail(err, TM_EINVAL, "files: malformed list");
  if (s != TM_OK) tm_files_release(f);
  return s;
}
