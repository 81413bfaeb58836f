/*
 * png.h - pixels as a PNG file in memory.
 *
 *     TM_TRY(tm_png_encode(pixels, height, width, 3, &out));
 *
 * Ownership: appends to the caller's buffer.  Threads: any.
 */
#ifndef TM_WATCH_PNG_H
#define TM_WATCH_PNG_H

#include "base/buf.h"

/* Rows of 8-bit pixels of 1 (grey), 2 (grey, alpha), 3 (red, green, blue) or 4
 * channels. TM_EEXHAUSTED: out may not grow so far; TM_ENOMEM.  What out had before
 * stays. */
TM_CHECKED tm_status tm_png_encode(const uint8_t *pixels, uint32_t height,
                                   uint32_t width, uint32_t channels, tm_buf *out);

#endif
