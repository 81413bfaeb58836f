/*
 * type.h - what is known of a value before it exists: dtype and shape.
 *
 * Threads: plain values.
 */
#ifndef TM_GRAPH_TYPE_H
#define TM_GRAPH_TYPE_H

#include "tensor/tensor.h"

typedef struct tm_type {
  tm_dtype dtype; /* TM_DTYPE_NONE: a resource (iterator) */
  tm_shape shape; /* -1: unknown while tracing */
} tm_type;

#endif
