#include "kernel/softmax.h"

#include <string.h>

#include "kernel/kernel.h"
#include "kernel/vmath.h"

/*
 * Design.  Rows are taken in blocks of some BLOCK elements, so that one vmath call
 * serves many short rows and all of a block stays in the first cache.  A row longer
 * than a block is taken alone; where it needs a copy it goes in pieces.
 */
enum { BLOCK = 1024 };

#define S f32
#define T float
#include "kernel/softmax.inc"
#undef S
#undef T
#define S f64
#define T double
#include "kernel/softmax.inc"
#undef S
#undef T
