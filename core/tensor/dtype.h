/*
 * dtype.h - element types: one row a type.
 *
 * A string element is a tm_str; its bytes live in (or are kept alive by) the
 * storage of the tensor that holds it.
 *
 * Threads: constant tables.
 */
#ifndef TM_TENSOR_DTYPE_H
#define TM_TENSOR_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tm_str {
  const char *p; /* not NUL-terminated; may be NULL when n == 0 */
  size_t n;
} tm_str;

/* enum, value on the wire, C type, name, safetensors name, is_float, is_int.
 * Values never change once released. */
#define TM_DTYPE_MAP(X)                     \
  X(F32, 1, float, "float32", "F32", 1, 0)  \
  X(F64, 2, double, "float64", "F64", 1, 0) \
  X(I32, 3, int32_t, "int32", "I32", 0, 1)  \
  X(I64, 4, int64_t, "int64", "I64", 0, 1)  \
  X(U8, 5, uint8_t, "uint8", "U8", 0, 1)    \
  X(BOOL, 6, uint8_t, "bool", "BOOL", 0, 0) \
  X(STRING, 7, tm_str, "string", NULL, 0, 0)

typedef enum tm_dtype {
  TM_DTYPE_NONE = 0,
#define X(e, v, c, name, st, f, i) TM_##e = (v),
  TM_DTYPE_MAP(X)
#undef X
} tm_dtype;

size_t tm_dtype_size(tm_dtype t); /* bytes an element; 0 for a bad value */
const char *tm_dtype_name(tm_dtype t);
tm_dtype tm_dtype_of_name(const char *name); /* TM_DTYPE_NONE when unknown */
bool tm_dtype_is_float(tm_dtype t);
bool tm_dtype_is_int(tm_dtype t);    /* int32, int64, uint8 */
bool tm_dtype_is_number(tm_dtype t); /* float or int */
bool tm_dtype_valid(int64_t v);      /* of a number from outside */

#endif
