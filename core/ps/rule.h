/*
 * rule.h - optimizer update rules: one row a rule.
 *
 * Formulas are those of tf-keras's legacy optimizers (and, for adam, Kingma & Ba
 * 2015; ftrl, McMahan et al. 2013).  hyper[0] is the learning rate.
 *
 *   rule       hyper[1..]                                            slots
 *   sgd        momentum, nesterov(0/1)                               momentum (if > 0)
 *   rmsprop    rho, momentum, epsilon, centered(0/1)                 rms, momentum?,
 * mg? adagrad    epsilon, initial_accumulator                          accumulator adam
 * beta_1, beta_2, epsilon, amsgrad(0/1)                 m, v, vhat? adamw      beta_1,
 * beta_2, epsilon, weight_decay                 m, v ftrl       lr_power,
 * initial_accumulator, l1, l2, l2_shrinkage, beta   accumulator, linear (adadelta,
 * adamax, nadam follow in the same table)
 *
 * `slot` (hyper: the slot's number) stores the gradient in a slot and leaves x alone:
 * a checkpoint is restored by it.  Numbers from 0: momentum, rms, mg, accumulator,
 * accum_grad, accum_var, m, v, vhat, linear.  They never change.
 *
 * t is the step number from 1.  By rows only the given rows and their slots change.
 */
#ifndef TM_PS_RULE_H
#define TM_PS_RULE_H

#include "tensor/tensor.h"

enum { TM_RULE_MAX_SLOTS = 4 };

typedef struct tm_rule {
  const char *name;
  int32_t min_hyper, max_hyper;
  /* Slots that these hyper-parameters need: names, and the value they start with. */
  int32_t (*slots)(const double *hyper, const char *name[TM_RULE_MAX_SLOTS],
                   double start[TM_RULE_MAX_SLOTS]);
  /* n elements of x, gradient g, slots s[k]; in place.  hyper has TM_RULE_MAX_HYPER
   * entries. */
  void (*apply_f32)(float *x, const float *g, float *const *s, int64_t n,
                    const double *hyper, int64_t t);
  void (*apply_f64)(double *x, const double *g, double *const *s, int64_t n,
                    const double *hyper, int64_t t);
} tm_rule;

const tm_rule *tm_rule_find(const char *name); /* NULL: unknown */

#endif
