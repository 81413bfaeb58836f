/*
 * kernel.h - what every kernel is written with.
 *
 * A kernel is a loop over dense raw memory: no allocation, no lock, no status, no
 * check.  The same source is compiled for three machines and gives the same bits on
 * each: sums run in fixed lanes, contraction is off, transcendental functions come
 * from kernel/vmath.h.
 *
 * Threads: kernels are pure functions of their arguments.
 */
#ifndef TM_KERNEL_KERNEL_H
#define TM_KERNEL_KERNEL_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

/* One source loop, three machine versions, picked when the program loads.
 * gcc only: clang 14 emits symbols that other files cannot link to, and the
 * loader runs the picker before ThreadSanitizer is up, which crashes. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__) && !defined(TM_NO_CLONES)
#define TM_KERNEL \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TM_KERNEL
#endif

/* Helpers called from a kernel must melt into it, or they stay baseline code. */
#define TM_INLINE static inline __attribute__((always_inline))

/* Before a loop whose output may be one of its inputs, but never overlaps one
 * otherwise: element i is read before it is written, no other is touched.  clang
 * finds out by itself, at run time. */
#if defined(__clang__)
#define TM_IVDEP
#else
#define TM_IVDEP _Pragma("GCC ivdep")
#endif

enum { TM_LANES = 16 }; /* one AVX-512 register of float */

TM_INLINE float tm_fma(float a, float b, float c) { return fmaf(a, b, c); }

/* Types of numbers: suffix, type, type of the same size in which overflow wraps. */
#define TM_K_FLOATS(X) X(f32, float, float) X(f64, double, double)
#define TM_K_INTS(X) \
  X(i32, int32_t, uint32_t) X(i64, int64_t, uint64_t) X(u8, uint8_t, uint8_t)
#define TM_K_NUMBERS(X) TM_K_FLOATS(X) TM_K_INTS(X)

#endif
