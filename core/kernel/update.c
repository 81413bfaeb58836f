#include "kernel/update.h"

#include "kernel/kernel.h"

/* The loops of update.inc, once a float type. */

#define S    f32
#define T    float
#define SQRT sqrtf
#define ABS  fabsf
#define POW  powf
#include "kernel/update.inc"
#undef S
#undef T
#undef SQRT
#undef ABS
#undef POW

#define S    f64
#define T    double
#define SQRT sqrt
#define ABS  fabs
#define POW  pow
#include "kernel/update.inc"
