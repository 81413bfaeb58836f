#include "data/number.h"

#include <stdlib.h>
#include <string.h>

/*
 * Design.  A number of few digits and a small power of ten is converted exactly: one
 * multiplication or division of two exact numbers, so one rounding.  All others go
 * to strtod or strtof as "digits e exponent", a text without a decimal point, which
 * means the same in every locale.
 */
bool tm_text_i64(const char *p, size_t n, int64_t *out) {
  size_t i = n > 0 && (p[0] == '-' || p[0] == '+');
  bool neg = i && p[0] == '-';
  uint64_t v = 0, max = (uint64_t)INT64_MAX + (neg ? 1 : 0);
  if (i == n) return false;
  for (; i < n; i++) {
    unsigned d = (unsigned)(p[i] - '0');
    if (d > 9 || v > (max - d) / 10) return false;
    v = v * 10 + d;
  }
  *out = neg ? (int64_t)(0 - v) : (int64_t)v;
  return true;
}

/* A decimal number as digits * 10^exp10; false when it is none. */
struct decimal {
  uint64_t digits;
  int exp10;
  bool neg, exact; /* digits hold all of it */
};

static void decimal_digit(struct decimal *d, char c, bool fraction) {
  if (d->digits < UINT64_MAX / 10 - 1) {
    d->digits = d->digits * 10 + (uint64_t)(c - '0');
    d->exp10 -= fraction;
  } else {
    d->exact = false;
    d->exp10 += !fraction;
  }
}

static bool decimal_exponent(const char *p, size_t n, int *out) {
  int64_t e;
  if (!tm_text_i64(p, n, &e)) return false;
  *out = e > 100000 ? 100000 : e < -100000 ? -100000 : (int)e;
  return true;
}

static bool decimal_read(const char *p, size_t n, struct decimal *d) {
  size_t i = n > 0 && (p[0] == '-' || p[0] == '+'), seen = 0;
  *d = (struct decimal){0, 0, i && p[0] == '-', true};
  bool fraction = false;
  for (; i < n; i++) {
    if (p[i] >= '0' && p[i] <= '9') {
      decimal_digit(d, p[i], fraction);
      seen++;
    } else if (p[i] == '.' && !fraction) {
      fraction = true;
    } else {
      break;
    }
  }
  if (seen == 0) return false;
  if (i == n) return true;
  int e = 0;
  if ((p[i] != 'e' && p[i] != 'E') || !decimal_exponent(p + i + 1, n - i - 1, &e))
    return false;
  d->exp10 += e;
  return true;
}

static const double pow10_exact[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                     1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                     1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c; }

static bool word_is(const char *p, size_t n, const char *word) {
  if (strlen(word) != n) return false;
  for (size_t i = 0; i < n; i++)
    if (lower(p[i]) != word[i]) return false;
  return true;
}

/* nan, inf and infinity in any case, with a sign. */
static bool word_number(const char *p, size_t n, double *out) {
  bool sign = n > 0 && (p[0] == '-' || p[0] == '+');
  const char *w = p + sign;
  size_t k = n - sign;
  double v;
  if (word_is(w, k, "nan"))
    v = strtod("nan", NULL);
  else if (word_is(w, k, "inf") || word_is(w, k, "infinity"))
    v = strtod("inf", NULL);
  else
    return false;
  *out = sign && p[0] == '-' ? -v : v;
  return true;
}

/* The text of a decimal (n <= TM_NUMBER_TEXT), all its digits, through strtod. */
static double decimal_slow(const char *p, size_t n, bool single) {
  char s[TM_NUMBER_TEXT + 32];
  size_t k = 0, i = 0;
  int exp10 = 0;
  bool fraction = false;
  for (; i < n && p[i] != 'e' && p[i] != 'E'; i++) {
    if (p[i] == '.') {
      fraction = true;
      continue;
    }
    s[k++] = p[i];
    exp10 -= fraction;
  }
  int e = 0;
  if (i < n) (void)decimal_exponent(p + i + 1, n - i - 1, &e);
  exp10 += e;
  s[k++] = 'e';
  if (exp10 < 0) s[k++] = '-';
  char num[16];
  int m = 0, a = exp10 < 0 ? -exp10 : exp10;
  do num[m++] = (char)('0' + a % 10);
  while ((a /= 10) > 0);
  while (m > 0) s[k++] = num[--m];
  s[k] = 0;
  return single ? (double)strtof(s, NULL) : strtod(s, NULL);
}

bool tm_text_f64(const char *p, size_t n, double *out) {
  struct decimal d;
  if (n > TM_NUMBER_TEXT) return false;
  if (!decimal_read(p, n, &d)) return word_number(p, n, out);
  if (!d.exact || d.digits >> 53 || d.exp10 < -22 || d.exp10 > 22) {
    *out = decimal_slow(p, n, false);
    return true;
  }
  double v = (double)d.digits; /* exact, and so is the power: one rounding */
  v = d.exp10 < 0 ? v / pow10_exact[-d.exp10] : v * pow10_exact[d.exp10];
  *out = d.neg ? -v : v;
  return true;
}

bool tm_text_f32(const char *p, size_t n, float *out) {
  struct decimal d;
  double w;
  if (n > TM_NUMBER_TEXT) return false;
  if (!decimal_read(p, n, &d)) {
    if (!word_number(p, n, &w)) return false;
    *out = (float)w;
    return true;
  }
  if (!d.exact || d.digits >> 24 || d.exp10 < -10 || d.exp10 > 10) {
    *out = (float)decimal_slow(p, n, true);
    return true;
  }
  float v = (float)d.digits, t = (float)pow10_exact[abs(d.exp10)]; /* both exact */
  v = d.exp10 < 0 ? v / t : v * t;
  *out = d.neg ? -v : v;
  return true;
}

bool tm_text_bool(const char *p, size_t n, bool *out) {
  *out = word_is(p, n, "true") || word_is(p, n, "1");
  return *out || word_is(p, n, "false") || word_is(p, n, "0");
}
