#include "kernel/act.h"

#include <stdbool.h>

#include "kernel/kernel.h"
#include "kernel/vmath.h"

/*
 * Design.  Functions with an exponential go by blocks: a vmath call fills a block on
 * the stack, a plain loop combines it with x.  A block is read before it is written, so
 * the output may be an input.
 */
enum { BLOCK = 512 };

static const double SELU_ALPHA = 1.6732632423543772848170429916717;
static const double SELU_SCALE = 1.0507009873554804934193349852946;
static const double SQRT_2_PI = 0.79788456080286535587989211986876;
static const double SQRT_HALF = 0.70710678118654752440084436210485;
static const double INV_SQRT_2PI = 0.39894228040143267793994605993438;

#define S f32
#define T float
#include "kernel/act.inc"
#undef S
#undef T
#define S f64
#define T double
#include "kernel/act.inc"
#undef S
#undef T

const tm_k_act_fns tm_k_act[] = {
#define X(N, n) {n##_f32, n##_f64, n##_grad_f32, n##_grad_f64},
    TM_K_ACT_MAP(X)
#undef X
};
