#include "ps/rule.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "kernel/update.h"

/*
 * Design.  Each rule has one adapter a float type that reads its hyper-parameters,
 * computes what depends on t alone, and calls a loop of kernel/update.h.  Scalars are
 * computed in double and rounded once.  The adapters are written once, as a macro over
 * the type, because each is a handful of lines.
 */
static int32_t rule_slots(const char *const *names, const double *values, int32_t n,
                          const char *name[TM_RULE_MAX_SLOTS],
                          double start[TM_RULE_MAX_SLOTS]) {
  for (int32_t i = 0; i < n; i++) {
    name[i] = names[i];
    start[i] = values ? values[i] : 0.0;
  }
  return n;
}

static int32_t sgd_slots(const double *h, const char *name[], double start[]) {
  static const char *const names[] = {"momentum"};
  return rule_slots(names, NULL, h[1] > 0.0 ? 1 : 0, name, start);
}

static int32_t rmsprop_slots(const double *h, const char *name[], double start[]) {
  const char *names[3] = {"rms"};
  int32_t n = 1;
  if (h[2] > 0.0) names[n++] = "momentum";
  if (h[4] > 0.0) names[n++] = "mg";
  return rule_slots(names, NULL, n, name, start);
}

static int32_t adagrad_slots(const double *h, const char *name[], double start[]) {
  static const char *const names[] = {"accumulator"};
  return rule_slots(names, &h[2], 1, name, start);
}

static int32_t adadelta_slots(const double *h, const char *name[], double start[]) {
  static const char *const names[] = {"accum_grad", "accum_var"};
  (void)h;
  return rule_slots(names, NULL, 2, name, start);
}

static int32_t adam_slots(const double *h, const char *name[], double start[]) {
  static const char *const names[] = {"m", "v", "vhat"};
  return rule_slots(names, NULL, h[4] > 0.0 ? 3 : 2, name, start);
}

static int32_t moments_slots(const double *h, const char *name[], double start[]) {
  static const char *const names[] = {"m", "v"};
  (void)h;
  return rule_slots(names, NULL, 2, name, start);
}

static int32_t ftrl_slots(const double *h, const char *name[], double start[]) {
  static const char *const names[] = {"accumulator", "linear"};
  const double values[] = {h[2], 0.0};
  return rule_slots(names, values, 2, name, start);
}

/* By number, so that a restored slot is named without a text among the numbers. */
static int32_t slot_slots(const double *h, const char *name[], double start[]) {
  static const char *const names[] = {"momentum",   "rms",       "mg", "accumulator",
                                      "accum_grad", "accum_var", "m",  "v",
                                      "vhat",       "linear"};
  bool known = h[1] >= 0 && h[1] < (double)TM_COUNT(names);
  return rule_slots(&names[known ? (int)h[1] : 0], NULL, 1, name, start);
}

/* lr * sqrt(1 - b2^t) / (1 - b1^t). */
static double adam_alpha(const double *h, int64_t t) {
  double n = (double)t;
  return h[0] * sqrt(1 - pow(h[2], n)) / (1 - pow(h[1], n));
}

/* Nadam's momentum schedule (Dozat 2015, with Keras's 0.96 and 0.004). */
static double nadam_mu(const double *h, int64_t t) {
  return h[1] * (1 - 0.5 * pow(0.96, 0.004 * (double)t));
}

static double nadam_product(const double *h, int64_t t) {
  double p = 1;
  /* The product only shrinks; past 1e-30 it no longer shows in 1 - p. */
  for (int64_t i = 1; i <= t && p > 1e-30; i++) p *= nadam_mu(h, i);
  return p;
}

#define RULES(T, S)                                                                    \
  static void sgd_##S(T *x, const T *g, T *const *s, int64_t n, const double *h,       \
                      int64_t t) {                                                     \
    (void)t;                                                                           \
    if (h[1] > 0.0)                                                                    \
      tm_k_momentum_##S(x, g, s[0], (size_t)n, (T)h[0], (T)h[1], h[2] > 0.0);          \
    else                                                                               \
      tm_k_sgd_##S(x, g, (size_t)n, (T)h[0]);                                          \
  }                                                                                    \
  static void rmsprop_##S(T *x, const T *g, T *const *s, int64_t n, const double *h,   \
                          int64_t t) {                                                 \
    (void)t;                                                                           \
    size_t z = (size_t)n;                                                              \
    T lr = (T)h[0], rho = (T)h[1], mu = (T)h[2], eps = (T)h[3];                        \
    bool momentum = h[2] > 0.0, centered = h[4] > 0.0;                                 \
    if (momentum && centered)                                                          \
      tm_k_rmsprop_full_##S(x, g, s[0], s[1], s[2], z, lr, rho, mu, eps);              \
    else if (momentum)                                                                 \
      tm_k_rmsprop_momentum_##S(x, g, s[0], s[1], z, lr, rho, mu, eps);                \
    else if (centered)                                                                 \
      tm_k_rmsprop_centered_##S(x, g, s[0], s[1], z, lr, rho, eps);                    \
    else                                                                               \
      tm_k_rmsprop_##S(x, g, s[0], z, lr, rho, eps);                                   \
  }                                                                                    \
  static void adagrad_##S(T *x, const T *g, T *const *s, int64_t n, const double *h,   \
                          int64_t t) {                                                 \
    (void)t;                                                                           \
    tm_k_adagrad_##S(x, g, s[0], (size_t)n, (T)h[0], (T)h[1]);                         \
  }                                                                                    \
  static void adadelta_##S(T *x, const T *g, T *const *s, int64_t n, const double *h,  \
                           int64_t t) {                                                \
    (void)t;                                                                           \
    tm_k_adadelta_##S(x, g, s[0], s[1], (size_t)n, (T)h[0], (T)h[1], (T)h[2]);         \
  }                                                                                    \
  static void adam_##S(T *x, const T *g, T *const *s, int64_t n, const double *h,      \
                       int64_t t) {                                                    \
    T a = (T)adam_alpha(h, t), b1 = (T)h[1], b2 = (T)h[2], eps = (T)h[3];              \
    if (h[4] > 0.0)                                                                    \
      tm_k_amsgrad_##S(x, g, s[0], s[1], s[2], (size_t)n, a, b1, b2, eps);             \
    else                                                                               \
      tm_k_adam_##S(x, g, s[0], s[1], (size_t)n, a, b1, b2, eps, 0);                   \
  }                                                                                    \
  static void adamw_##S(T *x, const T *g, T *const *s, int64_t n, const double *h,     \
                        int64_t t) {                                                   \
    tm_k_adam_##S(x, g, s[0], s[1], (size_t)n, (T)adam_alpha(h, t), (T)h[1], (T)h[2],  \
                  (T)h[3], (T)(h[0] * h[4]));                                          \
  }                                                                                    \
  static void adamax_##S(T *x, const T *g, T *const *s, int64_t n, const double *h,    \
                         int64_t t) {                                                  \
    T a = (T)(h[0] / (1 - pow(h[1], (double)t)));                                      \
    tm_k_adamax_##S(x, g, s[0], s[1], (size_t)n, a, (T)h[1], (T)h[2], (T)h[3]);        \
  }                                                                                    \
  static void nadam_##S(T *x, const T *g, T *const *s, int64_t n, const double *h,     \
                        int64_t t) {                                                   \
    double mu = nadam_mu(h, t), next = nadam_mu(h, t + 1), p = nadam_product(h, t);    \
    T a = (T)((1 - mu) / (1 - p)), c = (T)(next / (1 - p * next));                     \
    T d = (T)(1 / (1 - pow(h[2], (double)t)));                                         \
    tm_k_nadam_##S(x, g, s[0], s[1], (size_t)n, (T)h[0], (T)h[1], (T)h[2], (T)h[3], a, \
                   c, d);                                                              \
  }                                                                                    \
  static void ftrl_##S(T *x, const T *g, T *const *s, int64_t n, const double *h,      \
                       int64_t t) {                                                    \
    (void)t;                                                                           \
    /* beta joins l2, as tf-keras does before it calls the kernel. */                  \
    double l2 = h[4] + (h[0] > 0.0 ? h[6] / (2 * h[0]) : 0.0);                         \
    tm_k_ftrl_##S(x, g, s[0], s[1], (size_t)n, (T)h[0], (T)-h[1], (T)h[3], (T)l2,      \
                  (T)h[5]);                                                            \
  }                                                                                    \
  static void slot_##S(T *x, const T *g, T *const *s, int64_t n, const double *h,      \
                       int64_t t) {                                                    \
    (void)x;                                                                           \
    (void)h;                                                                           \
    (void)t;                                                                           \
    memcpy(s[0], g, (size_t)n * sizeof *g);                                            \
  }

RULES(float, f32)
RULES(double, f64)

#define ROW(name, min, max, slots) \
  { #name, min, max, slots, name##_f32, name##_f64 }

static const tm_rule rule_table[] = {
    ROW(sgd, 1, 3, sgd_slots),         ROW(rmsprop, 4, 5, rmsprop_slots),
    ROW(adagrad, 3, 3, adagrad_slots), ROW(adadelta, 3, 3, adadelta_slots),
    ROW(adam, 4, 5, adam_slots),       ROW(adamw, 5, 5, moments_slots),
    ROW(adamax, 4, 4, moments_slots),  ROW(nadam, 4, 4, moments_slots),
    ROW(ftrl, 4, 7, ftrl_slots),       ROW(slot, 2, 2, slot_slots),
};

const tm_rule *tm_rule_find(const char *name) {
  for (size_t i = 0; i < TM_COUNT(rule_table); i++)
    if (strcmp(rule_table[i].name, name) == 0) return &rule_table[i];
  return NULL;
}
