/*
 * act.h - activation functions and their derivatives, element by element.
 *
 *     tm_k_act[TM_K_ACT_RELU].f32(out, x, n, 0);
 *     tm_k_act[TM_K_ACT_RELU].grad_f32(dx, dy, x, n, 0);   -- dx = dy * relu'(x)
 *
 * `p` is alpha of leaky_relu and elu, 1 for the approximate gelu, else unused.  The
 * output may be an input.
 * Threads: pure functions.
 */
#ifndef TM_KERNEL_ACT_H
#define TM_KERNEL_ACT_H

#include <stddef.h>
#include <stdint.h>

#define TM_K_ACT_MAP(X)     \
  X(RELU, relu)             \
  X(RELU6, relu6)           \
  X(LEAKY_RELU, leaky_relu) \
  X(ELU, elu)               \
  X(SELU, selu)             \
  X(GELU, gelu)             \
  X(SILU, silu)             \
  X(SOFTPLUS, softplus)     \
  X(SOFTSIGN, softsign)

typedef enum tm_k_act_kind {
#define X(N, n) TM_K_ACT_##N,
  TM_K_ACT_MAP(X)
#undef X
} tm_k_act_kind;

typedef struct tm_k_act_fns {
  void (*f32)(float *o, const float *x, size_t n, double p);
  void (*f64)(double *o, const double *x, size_t n, double p);
  void (*grad_f32)(float *o, const float *dy, const float *x, size_t n, double p);
  void (*grad_f64)(double *o, const double *dy, const double *x, size_t n, double p);
} tm_k_act_fns;

extern const tm_k_act_fns tm_k_act[];

/* out (rows, n) = x + bias (n); out may be x. */
void tm_k_bias_add_f32(float *o, const float *x, const float *bias, int64_t rows,
                       int64_t n);
void tm_k_bias_add_f64(double *o, const double *x, const double *bias, int64_t rows,
                       int64_t n);
/* out (n) = sum of the rows of x (rows, n), in order. */
void tm_k_sum_columns_f32(float *restrict o, const float *restrict x, int64_t rows,
                          int64_t n);
void tm_k_sum_columns_f64(double *restrict o, const double *restrict x, int64_t rows,
                          int64_t n);

/* Sum of x * x, in lanes. */
float tm_k_sum_squares_f32(const float *x, int64_t n);
double tm_k_sum_squares_f64(const double *x, int64_t n);

/* o = max(x, 0) - x * z + log(1 + exp(-|x|)): z labels, x logits; o may be either. */
void tm_k_sigmoid_xent_f32(float *o, const float *z, const float *x, size_t n);
void tm_k_sigmoid_xent_f64(double *o, const double *z, const double *x, size_t n);
/* o = dy * (sigmoid(x) - z). */
void tm_k_sigmoid_xent_grad_f32(float *o, const float *dy, const float *z,
                                const float *x, size_t n);
void tm_k_sigmoid_xent_grad_f64(double *o, const double *dy, const double *z,
                                const double *x, size_t n);

#endif
