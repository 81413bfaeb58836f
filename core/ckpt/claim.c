#define _DEFAULT_SOURCE /* flock */
#include "ckpt/claim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "ckpt/file.h"

/*
 * Design.  The file's text is "held OF\n" or "done OF\n".
 *
 * Invariants:
 *   (1) Who has the lock looks whether the file still has its name before it believes
 *       to be the owner: one that was broken in between has none.
 *   (2) Claims are broken under the lock of their directory, and only if the mark is
 * the one that stood still: of two that break, the second finds another file.
 */
enum { CLAIM_TURNS = 8, CLAIM_TEXT = TM_CLAIM_OF + 16 };
static const double CLAIM_LOCK_S = 5;

struct tm_claim {
  int fd;
  bool finished;
  char path[TM_PATH_MAX], of[TM_CLAIM_OF];
};

static bool claim_named(int fd) {
  struct stat st;
  return fstat(fd, &st) == 0 && st.st_nlink > 0;
}

static bool claim_write(int fd, const char *state, const char *of) {
  char text[CLAIM_TEXT];
  int n = snprintf(text, sizeof text, "%s %s\n", state, of);
  return n > 0 && (size_t)n < sizeof text && ftruncate(fd, 0) == 0 &&
         pwrite(fd, text, (size_t)n, 0) == n;
}

static bool claim_is_done(int fd, const char *of) {
  char want[CLAIM_TEXT], have[CLAIM_TEXT];
  int len = snprintf(want, sizeof want, "done %s\n", of);
  ssize_t n = pread(fd, have, sizeof have, 0);
  return n == len && memcmp(want, have, (size_t)n) == 0;
}

/* The file, made or found.  TM_EAGAIN: it went in between. */
static tm_status claim_file(const char *path, int *fd, bool *made, tm_err *err) {
  *made = true;
  *fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (*fd < 0 && errno == EEXIST) {
    *made = false;
    *fd = open(path, O_RDWR | O_CLOEXEC);
    if (*fd < 0 && errno == ENOENT) return TM_EAGAIN;
  }
  return *fd < 0 ? tm_file_fail(err, errno, "open", path) : TM_OK;
}

/* Whose is it?  TM_EAGAIN: it lost its name in between. */
static tm_status claim_look(int fd, bool made, const char *of, tm_claim_state *found) {
  bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0;
  bool held = !locked && (errno == EWOULDBLOCK || !made); /* else: no locks here */
  *found = TM_CLAIM_MINE;
  if (claim_is_done(fd, of))
    *found = TM_CLAIM_DONE;
  else if (held)
    *found = TM_CLAIM_HELD;
  else if (!claim_named(fd))
    return TM_EAGAIN;
  return TM_OK;
}

/* *fd is open when it is MINE. */
static tm_status claim_open(const char *path, const char *of, int *fd,
                            tm_claim_state *found, tm_err *err) {
  bool made;
  TM_TRY(claim_file(path, fd, &made, err));
  tm_status s = claim_look(*fd, made, of, found);
  if (s == TM_OK && *found == TM_CLAIM_MINE) {
    if (claim_write(*fd, "held", of)) return TM_OK;
    s = tm_file_fail(err, errno, "write", path);
  }
  close(*fd);
  *fd = -1;
  return s;
}

static tm_status claim_dir(const char *path, tm_err *err) {
  char dir[TM_PATH_MAX];
  TM_TRY(tm_path_parent(dir, path, err));
  return tm_dir_make(dir, err);
}

tm_status tm_claim_take(const char *path, const char *of, tm_claim **out,
                        tm_claim_state *found, tm_err *err) {
  *out = NULL;
  *found = TM_CLAIM_HELD;
  if (strlen(path) >= TM_PATH_MAX || strlen(of) >= TM_CLAIM_OF)
    return tm_fail(err, TM_EINVAL, "the name of a claim is too long");
  TM_TRY(claim_dir(path, err));
  tm_claim *c = tm_calloc(1, sizeof *c);
  if (!c) return tm_nomem(err, "a claim");
  c->fd = -1;
  snprintf(c->path, sizeof c->path, "%s", path);
  snprintf(c->of, sizeof c->of, "%s", of);
  tm_status s = TM_EAGAIN;
  for (int turn = 0; s == TM_EAGAIN && turn < CLAIM_TURNS; turn++)
    s = claim_open(path, of, &c->fd, found, err);
  if (s == TM_EAGAIN) s = TM_OK, *found = TM_CLAIM_HELD; /* who hurries so has it */
  if (s || *found != TM_CLAIM_MINE) {
    tm_claim_free(c);
    return s;
  }
  *out = c;
  return TM_OK;
}

bool tm_claim_beat(tm_claim *c) {
  if (!claim_named(c->fd)) return false;
  return futimens(c->fd, NULL) == 0 || claim_write(c->fd, "held", c->of);
}

bool tm_claim_finish(tm_claim *c) {
  c->finished = claim_named(c->fd) && claim_write(c->fd, "done", c->of);
  return c->finished;
}

void tm_claim_free(tm_claim *c) {
  if (!c) return;
  if (c->fd >= 0 && !c->finished && claim_named(c->fd)) unlink(c->path);
  if (c->fd >= 0) close(c->fd);
  tm_free(c, sizeof *c);
}

uint64_t tm_claim_mark(const char *path) {
  struct stat st;
  if (stat(path, &st) < 0) return 0;
  uint64_t ns =
      (uint64_t)st.st_mtim.tv_sec * UINT64_C(1000000000) + (uint64_t)st.st_mtim.tv_nsec;
  uint64_t mark = (ns ^ ((uint64_t)st.st_ino << 40)) & ((UINT64_C(1) << 53) - 1);
  return mark ? mark : 1;
}

void tm_claim_break(const char *path, uint64_t mark) {
  char dir[TM_PATH_MAX];
  int fd = -1;
  if (tm_path_parent(dir, path, NULL) || tm_dir_lock(dir, CLAIM_LOCK_S, &fd, NULL))
    return;
  if (tm_claim_mark(path) == mark) unlink(path);
  if (fd >= 0) close(fd);
}

void tm_claim_forget(const char *path) {
  char dir[TM_PATH_MAX];
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) unlink(path);
  close(fd);
  if (tm_path_parent(dir, path, NULL) == TM_OK) rmdir(dir); /* fails unless empty */
}
