/*
 * killer.c - preloaded into a task: ends it by SIGKILL at its n-th system call that
 * changes something below a directory.
 *
 * KILL_DIR: the directory; KILL_AT: how many calls are let through.  Of a write that is
 * the last half the bytes are written.
 *
 * Threads: any.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_long left = -1; /* -1: not read yet */

static bool counts(const char *path) {
  const char *dir = getenv("KILL_DIR");
  return dir && path && strncmp(path, dir, strlen(dir)) == 0;
}

static bool counts_fd(int fd) {
  char name[64], path[4096];
  snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(name, path, sizeof path - 1);
  if (n < 0) return false;
  path[n] = '\0';
  return counts(path);
}

static bool is_last(void) {
  const char *at = getenv("KILL_AT");
  long unread = -1;
  if (!at) return false;
  atomic_compare_exchange_strong(&left, &unread, atol(at) + 1);
  return atomic_fetch_sub(&left, 1) == 1;
}

static void end(void) { kill(getpid(), SIGKILL); }

#define NEXT(name, ...) \
  ((__typeof__(&name))(__extension__(void *) dlsym(RTLD_NEXT, #name))) __VA_ARGS__

int open(const char *path, int flags, ...) {
  va_list ap;
  va_start(ap, flags);
  mode_t mode = flags & O_CREAT ? (mode_t)va_arg(ap, int) : 0;
  va_end(ap);
  if (flags & O_CREAT && counts(path) && is_last()) end();
  return NEXT(open)(path, flags, mode);
}

ssize_t write(int fd, const void *p, size_t n) {
  if (!counts_fd(fd) || !is_last()) return NEXT(write)(fd, p, n);
  if (NEXT(write)(fd, p, n / 2) >= 0) end();
  return -1;
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at) {
  if (counts_fd(fd) && is_last()) end();
  return NEXT(pwrite)(fd, p, n, at);
}

int fsync(int fd) {
  if (counts_fd(fd) && is_last()) end();
  return NEXT(fsync)(fd);
}

int rename(const char *from, const char *to) {
  if (counts(from) && is_last()) end();
  return NEXT(rename)(from, to);
}

int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
  if (counts(from) && is_last()) end();
  return NEXT(renameat2)(a, from, b, to, flags);
}

int link(const char *from, const char *to) {
  if (counts(to) && is_last()) end();
  return NEXT(link)(from, to);
}

int mkdir(const char *path, mode_t mode) {
  if (counts(path) && is_last()) end();
  return NEXT(mkdir)(path, mode);
}

int unlink(const char *path) {
  if (counts(path) && is_last()) end();
  return NEXT(unlink)(path);
}

int rmdir(const char *path) {
  if (counts(path) && is_last()) end();
  return NEXT(rmdir)(path);
}
