/*
 * number.h - text to numbers: decimal only, the same in every locale, correctly
 * rounded.
 *
 * The text has no blanks around it and need not end in NUL.  False: it is no such
 * number, or does not fit.
 *
 * Threads: pure functions.
 */
#ifndef TM_DATA_NUMBER_H
#define TM_DATA_NUMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TM_NUMBER_TEXT = 4096 }; /* bytes a number may have */

bool tm_text_i64(const char *p, size_t n, int64_t *out);
bool tm_text_f64(const char *p, size_t n, double *out); /* inf and nan too */
bool tm_text_f32(const char *p, size_t n, float *out);
bool tm_text_bool(const char *p, size_t n, bool *out); /* true false 1 0 */

#endif
