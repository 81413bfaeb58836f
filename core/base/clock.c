#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "base/map.h"

int64_t tm_now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

double tm_now_s(void) { return (double)tm_now_ns() * 1e-9; }

void tm_sleep_ns(int64_t ns) {
  if (ns <= 0) return;
  struct timespec t = {.tv_sec = (time_t)(ns / 1000000000),
                       .tv_nsec = (long)(ns % 1000000000)};
  while (nanosleep(&t, &t) != 0 && errno == EINTR) {
  }
}

static uint64_t clock_urandom(void) {
  uint64_t v = 0;
  int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  if (read(fd, &v, sizeof v) != (ssize_t)sizeof v) v = 0;
  close(fd);
  return v;
}

/* Time, pid and a count keep ids apart even where /dev/urandom is missing.  Never 0,
 * so that 0 can mean "none". */
uint64_t tm_random_id(void) {
  static atomic_ullong calls;
  struct timespec wall;
  clock_gettime(CLOCK_REALTIME, &wall);
  uint64_t id = clock_urandom();
  id ^= tm_mix64((uint64_t)wall.tv_sec * 1000000000u + (uint64_t)wall.tv_nsec);
  id ^= tm_mix64(((uint64_t)getpid() << 32) + atomic_fetch_add(&calls, 1));
  id ^= tm_mix64((uint64_t)tm_now_ns());
  return id ? id : 1;
}
