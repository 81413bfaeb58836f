/* crc32c.h - CRC-32C (Castagnoli, RFC 3720), start with 0.  Threads: pure. */
#ifndef TM_BASE_CRC32C_H
#define TM_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t tm_crc32c(uint32_t crc, const void *p, size_t n);
/* Of some bytes with `a` and n bytes behind them with `b`. */
uint32_t tm_crc32c_join(uint32_t a, uint32_t b, uint64_t n);

#endif
