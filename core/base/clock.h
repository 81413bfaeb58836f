/* clock.h - monotonic time.  Threads: any. */
#ifndef TM_BASE_CLOCK_H
#define TM_BASE_CLOCK_H

#include <stdint.h>

int64_t tm_now_ns(void);
double tm_now_s(void);
void tm_sleep_ns(int64_t ns);
/* A number no other process start has: for incarnations and ids (/dev/urandom,
 * mixed with time and pid). */
uint64_t tm_random_id(void);

#endif
