#include "tensor/dtype.h"

#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "payloads are copied as they lie in memory: a little-endian machine is needed"
#endif

/* Design.  Everything is generated from TM_DTYPE_MAP, so a type is one row. */

size_t tm_dtype_size(tm_dtype t) {
  switch (t) {
#define X(e, v, c, name, st, f, i) \
  case TM_##e:                     \
    return sizeof(c);
    TM_DTYPE_MAP(X)
#undef X
    case TM_DTYPE_NONE:
      break;
  }
  return 0;
}

const char *tm_dtype_name(tm_dtype t) {
  switch (t) {
#define X(e, v, c, name, st, f, i) \
  case TM_##e:                     \
    return name;
    TM_DTYPE_MAP(X)
#undef X
    case TM_DTYPE_NONE:
      break;
  }
  return "none";
}

tm_dtype tm_dtype_of_name(const char *name) {
#define X(e, v, c, text, st, f, i) \
  if (strcmp(name, text) == 0) return TM_##e;
  TM_DTYPE_MAP(X)
#undef X
  return TM_DTYPE_NONE;
}

bool tm_dtype_is_float(tm_dtype t) { return t == TM_F32 || t == TM_F64; }

bool tm_dtype_is_int(tm_dtype t) { return t == TM_I32 || t == TM_I64 || t == TM_U8; }

bool tm_dtype_is_number(tm_dtype t) {
  return tm_dtype_is_float(t) || tm_dtype_is_int(t);
}

bool tm_dtype_valid(int64_t v) { return v >= TM_F32 && v <= TM_STRING; }
