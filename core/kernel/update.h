/*
 * update.h - one optimizer step over n elements: x, its gradient g, its slots.
 *
 * All in place, element by element, so rows and whole shards use the same loops.
 * Formulas are those of tf-keras's legacy optimizers and the TensorFlow kernels
 * behind them; see ps/rule.h.  Arrays do not overlap.
 *
 * Threads: pure functions on the caller's memory.
 */
#ifndef TM_KERNEL_UPDATE_H
#define TM_KERNEL_UPDATE_H

#include <stdbool.h>
#include <stddef.h>

#define TM_K_UPDATE_DECLARE(S, T)                                                      \
  void tm_k_sgd_##S(T *x, const T *g, size_t n, T lr);                                 \
  void tm_k_momentum_##S(T *x, const T *g, T *acc, size_t n, T lr, T momentum,         \
                         bool nesterov);                                               \
  void tm_k_rmsprop_##S(T *x, const T *g, T *ms, size_t n, T lr, T rho, T eps);        \
  void tm_k_rmsprop_centered_##S(T *x, const T *g, T *ms, T *mg, size_t n, T lr,       \
                                 T rho, T eps);                                        \
  void tm_k_rmsprop_momentum_##S(T *x, const T *g, T *ms, T *mom, size_t n, T lr,      \
                                 T rho, T momentum, T eps);                            \
  void tm_k_rmsprop_full_##S(T *x, const T *g, T *ms, T *mom, T *mg, size_t n, T lr,   \
                             T rho, T momentum, T eps);                                \
  void tm_k_adagrad_##S(T *x, const T *g, T *acc, size_t n, T lr, T eps);              \
  void tm_k_adadelta_##S(T *x, const T *g, T *acc, T *upd, size_t n, T lr, T rho,      \
                         T eps);                                                       \
  void tm_k_adam_##S(T *x, const T *g, T *m, T *v, size_t n, T alpha, T b1, T b2,      \
                     T eps, T decay);                                                  \
  void tm_k_amsgrad_##S(T *x, const T *g, T *m, T *v, T *vhat, size_t n, T alpha,      \
                        T b1, T b2, T eps);                                            \
  void tm_k_adamax_##S(T *x, const T *g, T *m, T *v, size_t n, T alpha, T b1, T b2,    \
                       T eps);                                                         \
  /* Nadam: mhat = a * g + c * m, vhat = v * d. */                                     \
  void tm_k_nadam_##S(T *x, const T *g, T *m, T *v, size_t n, T lr, T b1, T b2, T eps, \
                      T a, T c, T d);                                                  \
  /* sqrt instead of pow when power is 0.5; power = -learning_rate_power. */           \
  void tm_k_ftrl_##S(T *x, const T *g, T *acc, T *lin, size_t n, T lr, T power, T l1,  \
                     T l2, T shrink);

TM_K_UPDATE_DECLARE(f32, float)
TM_K_UPDATE_DECLARE(f64, double)

#undef TM_K_UPDATE_DECLARE

#endif
