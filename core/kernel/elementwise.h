/*
 * elementwise.h - tables of kernels that work element by element, by type of number.
 *
 * Each table has one kernel a type, in the order of tm_k_type; NULL where the op has
 * no meaning for the type.
 *
 *     tm_k_add[TM_K_F32](out, a, b, n, TM_K_VS);     -- out[i] = a[i] + b[0]
 *
 * The output may be one of the inputs, but must not overlap one otherwise.
 * Bools are bytes 0 and 1.  Integer overflow wraps.
 * Threads: pure functions.
 */
#ifndef TM_KERNEL_ELEMENTWISE_H
#define TM_KERNEL_ELEMENTWISE_H

#include <stddef.h>
#include <stdint.h>

typedef enum tm_k_type {
  TM_K_F32,
  TM_K_F64,
  TM_K_I32,
  TM_K_I64,
  TM_K_U8,
  TM_K_TYPES
} tm_k_type;

/* Which input is an array (V) and which one number (S). */
typedef enum tm_k_mode { TM_K_VV, TM_K_VS, TM_K_SV } tm_k_mode;

typedef void tm_k_unary(void *o, const void *x, size_t n);
typedef void tm_k_binary(void *o, const void *a, const void *b, size_t n, tm_k_mode m);

/* --- arith.c, of two inputs --- */
/* floordiv and mod follow Python: the remainder has the divisor's sign.  The divisor
 * of integers must not be 0.  minimum and maximum give NaN when either is NaN. */
extern tm_k_binary *const tm_k_add[TM_K_TYPES];
extern tm_k_binary *const tm_k_sub[TM_K_TYPES];
extern tm_k_binary *const tm_k_mul[TM_K_TYPES];
extern tm_k_binary *const tm_k_div[TM_K_TYPES]; /* floats only */
extern tm_k_binary *const tm_k_floordiv[TM_K_TYPES];
extern tm_k_binary *const tm_k_mod[TM_K_TYPES];
extern tm_k_binary *const tm_k_minimum[TM_K_TYPES];
extern tm_k_binary *const tm_k_maximum[TM_K_TYPES];
extern tm_k_binary *const tm_k_pow[TM_K_TYPES]; /* integers: exponents >= 0 */

/* --- unary.c --- */
extern tm_k_unary *const tm_k_neg[TM_K_TYPES];
extern tm_k_unary *const tm_k_abs[TM_K_TYPES];
extern tm_k_unary *const tm_k_sign[TM_K_TYPES];
extern tm_k_unary *const tm_k_square[TM_K_TYPES];
/* Floats only. round is to the nearest, halves to even. */
extern tm_k_unary *const tm_k_sqrt[TM_K_TYPES];
extern tm_k_unary *const tm_k_rsqrt[TM_K_TYPES];
extern tm_k_unary *const tm_k_reciprocal[TM_K_TYPES];
extern tm_k_unary *const tm_k_floor[TM_K_TYPES];
extern tm_k_unary *const tm_k_ceil[TM_K_TYPES];
extern tm_k_unary *const tm_k_round[TM_K_TYPES];
/* The functions of vmath.h as a table. */
extern tm_k_unary *const tm_k_exp[TM_K_TYPES];
extern tm_k_unary *const tm_k_expm1[TM_K_TYPES];
extern tm_k_unary *const tm_k_log[TM_K_TYPES];
extern tm_k_unary *const tm_k_log1p[TM_K_TYPES];
extern tm_k_unary *const tm_k_sin[TM_K_TYPES];
extern tm_k_unary *const tm_k_cos[TM_K_TYPES];
extern tm_k_unary *const tm_k_tan[TM_K_TYPES];
extern tm_k_unary *const tm_k_sinh[TM_K_TYPES];
extern tm_k_unary *const tm_k_cosh[TM_K_TYPES];
extern tm_k_unary *const tm_k_tanh[TM_K_TYPES];
extern tm_k_unary *const tm_k_erf[TM_K_TYPES];
extern tm_k_unary *const tm_k_sigmoid[TM_K_TYPES];

/* --- compare.c: the output is bools --- */
extern tm_k_binary *const tm_k_equal[TM_K_TYPES];
extern tm_k_binary *const tm_k_not_equal[TM_K_TYPES];
extern tm_k_binary *const tm_k_less[TM_K_TYPES];
extern tm_k_binary *const tm_k_less_equal[TM_K_TYPES];
extern tm_k_unary *const tm_k_is_nan[TM_K_TYPES]; /* floats only */
extern tm_k_unary *const tm_k_is_inf[TM_K_TYPES];
extern tm_k_unary *const tm_k_is_finite[TM_K_TYPES];
void tm_k_and(void *o, const void *a, const void *b, size_t n, tm_k_mode m);
void tm_k_or(void *o, const void *a, const void *b, size_t n, tm_k_mode m);
void tm_k_xor(void *o, const void *a, const void *b, size_t n, tm_k_mode m);
void tm_k_not(void *o, const void *x, size_t n);

/* o[i] = c[i] ? a[i] : b[i], elements of `size` bytes (1, 4, 8).  An input whose
 * step is 0 is one number, else its step is 1. */
typedef struct tm_k_steps {
  int c, a, b;
} tm_k_steps;
void tm_k_where(void *o, const uint8_t *c, const void *a, const void *b, size_t n,
                size_t size, tm_k_steps s);

/* --- cast.c --- */
/* From one type to another, TM_K_TYPES stands for bool.  Floats to integers are cut
 * towards zero; what does not fit becomes the nearest value, NaN becomes 0.  Integers
 * to narrower integers wrap.  To bool: x != 0.  o and x must not overlap. */
void tm_k_cast(void *o, int to, const void *x, int from, size_t n);

/* o[i] = value, elements of `size` bytes (any). */
void tm_k_fill(void *o, const void *value, size_t size, size_t n);

#endif
