#include "graph/ein.h"

#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "graph/rules.h"
#include "kernel/gemm.h"
#include "kernel/reduce.h"

/*
 * Design.  Operands are brought into the order of their groups by one walk (a repeated
 * label is a diagonal: its steps add; a size of 1 that is repeated has step 0), axes
 * that nobody else has are summed, gemm runs over the batch, the result is walked back.
 * An operand that lies in the right order, or in that of the transposed matrix, is used
 * where it is.  A single operand is multiplied by the number 1.
 */

/* --- reading --- */

enum { EIN_NAMES = 160, EIN_DOTS = 128 }; /* names: characters, or 128 + k of "..." */

struct ein_reader {
  tm_ein *e;
  int8_t of[EIN_NAMES]; /* label of a character, -1: not seen */
  int32_t count[TM_EIN_LABELS];
  int32_t dots; /* most axes that "..." stands for */
  tm_err *err;
};

static tm_status ein_label(struct ein_reader *r, int ch, int8_t *out) {
  tm_ein *e = r->e;
  if (r->of[ch] < 0) {
    if (e->nlabel == TM_EIN_LABELS)
      return tm_fail(r->err, TM_EINVAL, "more than %d different axes", TM_EIN_LABELS);
    e->size[e->nlabel] = 1;
    r->of[ch] = (int8_t)e->nlabel++;
  }
  *out = r->of[ch];
  return TM_OK;
}

static bool ein_letter(char ch) {
  return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z');
}

/* Letters of text[0..n-1], and whether it has "...". */
static tm_status ein_count(struct ein_reader *r, const char *text, size_t n,
                           int32_t *letters, bool *dots) {
  *letters = 0;
  *dots = false;
  for (size_t i = 0; i < n; i++) {
    if (text[i] == ' ') continue;
    if (ein_letter(text[i])) {
      (*letters)++;
    } else if (!*dots && n - i >= 3 && memcmp(text + i, "...", 3) == 0) {
      *dots = true;
      i += 2;
    } else {
      return tm_fail(r->err, TM_EINVAL, "\"%c\" in the equation is no axis", text[i]);
    }
  }
  return TM_OK;
}

/* Labels of text; "..." stands for `dots` axes, the last of them is EIN_DOTS. */
static tm_status ein_axes(struct ein_reader *r, const char *text, size_t n,
                          int32_t dots, tm_ein_axes *axes) {
  axes->n = 0;
  for (size_t i = 0; i < n; i++) {
    if (text[i] == ' ') continue;
    int32_t many = text[i] == '.' ? dots : 1;
    for (int32_t k = many - 1; k >= 0; k--) {
      if (axes->n == TM_MAX_RANK)
        return tm_fail(r->err, TM_EINVAL, "more than %d axes", TM_MAX_RANK);
      TM_TRY(ein_label(r, text[i] == '.' ? EIN_DOTS + k : text[i],
                       &axes->label[axes->n++]));
    }
    if (text[i] == '.') i += 2;
  }
  return TM_OK;
}

/* Join an axis of size d to a label. */
static tm_status ein_size(struct ein_reader *r, int8_t label, int64_t d) {
  int64_t *size = &r->e->size[label];
  if (*size == d || d == 1) return TM_OK;
  if (*size == 1 || *size < 0) {
    *size = d;
    return TM_OK;
  }
  if (d < 0) return TM_OK;
  return tm_fail(r->err, TM_EINVAL,
                 "an axis has size %" PRId64 " in one place and %" PRId64 " in another",
                 *size, d);
}

static tm_status ein_operand(struct ein_reader *r, const char *text, size_t n,
                             const tm_shape *s, int32_t which) {
  tm_ein_axes *axes = &r->e->in[which];
  int32_t letters;
  bool dots;
  TM_TRY(ein_count(r, text, n, &letters, &dots));
  int32_t rest = s->rank - letters;
  if (rest < 0 || (rest > 0 && !dots))
    return tm_fail(
        r->err, TM_EINVAL,
        "\"%.*s\" names %" PRId32 " axes, but tensor %" PRId32 " has shape %s", (int)n,
        text, letters, which + 1, tm_shape_text(s, (char[128]){0}, 128));
  if (rest > r->dots) r->dots = rest;
  TM_TRY(ein_axes(r, text, n, rest, axes));
  bool seen[TM_EIN_LABELS] = {false};
  for (int32_t i = 0; i < axes->n; i++) {
    TM_TRY(ein_size(r, axes->label[i], s->dim[i]));
    if (!seen[axes->label[i]]) r->count[axes->label[i]]++;
    if (seen[axes->label[i]]) r->count[axes->label[i]] = 2;
    seen[axes->label[i]] = true;
  }
  return TM_OK;
}

/* Without "->": the dots, then labels that appear once, by name. */
static tm_status ein_implied(struct ein_reader *r) {
  tm_ein *e = r->e;
  for (int32_t k = r->dots - 1; k >= 0; k--)
    TM_TRY(ein_label(r, EIN_DOTS + k, &e->out.label[e->out.n++]));
  for (int ch = 'A'; ch <= 'z'; ch++) {
    int8_t l = r->of[ch];
    if (l < 0 || r->count[l] != 1) continue;
    if (e->out.n == TM_MAX_RANK)
      return tm_fail(r->err, TM_EINVAL, "more than %d axes", TM_MAX_RANK);
    e->out.label[e->out.n++] = l;
  }
  return TM_OK;
}

static bool ein_has(const tm_ein_axes *axes, int8_t label) {
  for (int32_t i = 0; i < axes->n; i++)
    if (axes->label[i] == label) return true;
  return false;
}

static void ein_add(tm_ein_group *g, int8_t label) { g->label[g->n++] = label; }

/* Put each label into its group: those of the result in the order of the result. */
static tm_status ein_groups(tm_ein *e, tm_err *err) {
  bool done[TM_EIN_LABELS] = {false};
  for (int32_t i = 0; i < e->out.n; i++) {
    int8_t l = e->out.label[i];
    bool a = ein_has(&e->in[0], l), b = ein_has(&e->in[1], l);
    if (done[l]) return tm_fail(err, TM_EINVAL, "the result names an axis twice");
    if (!a && !b)
      return tm_fail(err, TM_EINVAL, "the result names an axis that no tensor has");
    done[l] = true;
    ein_add(a && b ? &e->batch : a ? &e->m : &e->n, l);
  }
  for (int8_t l = 0; l < e->nlabel; l++) {
    if (done[l]) continue;
    bool a = ein_has(&e->in[0], l), b = ein_has(&e->in[1], l);
    ein_add(a && b ? &e->k : &e->only[a ? 0 : 1], l);
  }
  return TM_OK;
}

tm_status tm_ein_parse(const char *equation, const tm_shape *in, int32_t nin, tm_ein *e,
                       tm_err *err) {
  struct ein_reader r = {.e = e, .err = err};
  memset(e, 0, sizeof *e);
  memset(r.of, -1, sizeof r.of);
  e->nin = nin;
  const char *arrow = strstr(equation, "->"), *p = equation;
  const char *end = arrow ? arrow : equation + strlen(equation);
  for (int32_t i = 0;; i++) {
    const char *comma = memchr(p, ',', (size_t)(end - p));
    if (i >= nin || (comma != NULL) != (i + 1 < nin))
      return tm_fail(err, TM_EINVAL, "\"%s\" is not for %" PRId32 " tensor%s", equation,
                     nin, nin > 1 ? "s" : "");
    TM_TRY(ein_operand(&r, p, (size_t)((comma ? comma : end) - p), &in[i], i));
    if (!comma) break;
    p = comma + 1;
  }
  if (!arrow) {
    TM_TRY(ein_implied(&r));
  } else {
    int32_t letters;
    bool dots;
    TM_TRY(ein_count(&r, arrow + 2, strlen(arrow + 2), &letters, &dots));
    TM_TRY(ein_axes(&r, arrow + 2, strlen(arrow + 2), r.dots, &e->out));
  }
  return ein_groups(e, err);
}

tm_status tm_ein_tensordot(const tm_attr *axes_a, const tm_attr *axes_b,
                           const tm_shape *in, tm_ein *e, tm_err *err) {
  struct ein_reader r = {.e = e, .err = err};
  memset(e, 0, sizeof *e);
  memset(r.of, -1, sizeof r.of);
  e->nin = 2;
  for (int32_t i = 0; i < 2; i++) {
    e->in[i].n = in[i].rank;
    memset(e->in[i].label, -1, sizeof e->in[i].label);
  }
  if (axes_a->n != axes_b->n)
    return tm_fail(err, TM_EINVAL,
                   "%" PRId32 " axes of a and %" PRId32 " of b are to be summed",
                   axes_a->n, axes_b->n);
  for (int32_t i = 0; i < axes_a->n; i++) {
    int32_t a, b;
    TM_TRY(tm_shape_axis(&in[0], axes_a->u.is[i], &a, err));
    TM_TRY(tm_shape_axis(&in[1], axes_b->u.is[i], &b, err));
    if (e->in[0].label[a] >= 0 || e->in[1].label[b] >= 0)
      return tm_fail(err, TM_EINVAL, "an axis is named twice");
    if (in[0].dim[a] >= 0 && in[1].dim[b] >= 0 && in[0].dim[a] != in[1].dim[b])
      return tm_fail(err, TM_EINVAL,
                     "axis %" PRId32 " of a has size %" PRId64 ", axis %" PRId32
                     " of b has size %" PRId64,
                     a + 1, in[0].dim[a], b + 1, in[1].dim[b]);
    TM_TRY(ein_label(&r, i, &e->in[0].label[a]));
    e->in[1].label[b] = e->in[0].label[a];
  }
  for (int32_t i = 0; i < 2; i++)
    for (int32_t k = 0; k < in[i].rank; k++) {
      int8_t *label = &e->in[i].label[k];
      if (*label < 0) {
        if (e->out.n == TM_MAX_RANK)
          return tm_fail(err, TM_EINVAL, "the result has more than %d axes",
                         TM_MAX_RANK);
        TM_TRY(ein_label(&r, 20 + 10 * i + k, label));
        e->out.label[e->out.n++] = *label;
      }
      TM_TRY(ein_size(&r, *label, in[i].dim[k]));
    }
  return ein_groups(e, err);
}

tm_shape tm_ein_shape(const tm_ein *e, const tm_ein_axes *axes) {
  tm_shape s = tm_shape_scalar();
  for (int32_t i = 0; i < axes->n; i++) s.dim[s.rank++] = e->size[axes->label[i]];
  return s;
}

/* --- sizes --- */

static const int64_t ein_most = INT64_C(1) << 40; /* elements of one operand in order */

/* Product of the sizes of a group; -1 when unknown, ein_most when above it. */
static int64_t ein_product(const tm_ein *e, const tm_ein_group *g) {
  int64_t n = 1;
  for (int32_t i = 0; i < g->n; i++) {
    int64_t d = e->size[g->label[i]];
    if (d < 0) return -1;
    if (!tm_mul_i64(n, d, &n) || n > ein_most) return ein_most;
  }
  return n;
}

tm_status tm_ein_check(const tm_ein *e, tm_err *err) {
  const tm_ein_group *all[] = {&e->batch, &e->m,       &e->n,
                               &e->k,     &e->only[0], &e->only[1]};
  double product = 1;
  for (size_t i = 0; i < TM_COUNT(all); i++) {
    int64_t n = ein_product(e, all[i]);
    if (n < 0) continue;
    if (n > INT32_MAX && i > 0)
      return tm_fail(err, TM_EINVAL, "a product of sizes is above 2^31 - 1");
    product *= n > 0 ? (double)n : 1;
  }
  if (product > 1e17) return tm_fail(err, TM_EINVAL, "the sizes are too large");
  return TM_OK;
}

struct ein_sizes {
  int64_t batch, m, n, k, only[2];
};

static struct ein_sizes ein_sizes_of(const tm_ein *e) {
  return (struct ein_sizes){ein_product(e, &e->batch),
                            ein_product(e, &e->m),
                            ein_product(e, &e->n),
                            ein_product(e, &e->k),
                            {ein_product(e, &e->only[0]), ein_product(e, &e->only[1])}};
}

/* Room, in elements, for an operand in order and its sum over `only`, each rounded. */
static int64_t ein_room(int64_t n) { return (n + 15) / 16 * 16; }

size_t tm_ein_scratch(const tm_ein *e, size_t elem) {
  struct ein_sizes z = ein_sizes_of(e);
  int64_t a = z.batch * z.m * z.k, b = z.batch * z.k * z.n, o = z.batch * z.m * z.n;
  int64_t total = ein_room(a) + ein_room(a * z.only[0]) + ein_room(b) +
                  ein_room(b * z.only[1]) + 2 * ein_room(o);
  return (size_t)total * elem;
}

/* --- order --- */

/* The walk over an array with these axes in the order of the groups; dims of s that
 * are 1 where the label is not are repeated. */
static tm_k_walk ein_walk(const tm_ein *e, const tm_ein_axes *axes, const tm_shape *s,
                          const tm_ein_group *const *g, int32_t n) {
  int64_t step[TM_MAX_RANK];
  tm_k_walk w = {.rank = 0};
  tm_dense_steps(s, step);
  for (int32_t i = 0; i < n; i++)
    for (int32_t k = 0; k < g[i]->n; k++) {
      int8_t label = g[i]->label[k];
      w.dim[w.rank] = e->size[label];
      for (int32_t x = 0; x < axes->n; x++)
        if (axes->label[x] == label && s->dim[x] != 1) w.step[w.rank] += step[x];
      w.rank++;
    }
  return w;
}

static bool ein_dense(const tm_k_walk *w) {
  int64_t n = 1;
  for (int32_t i = w->rank - 1; i >= 0; i--) {
    if (w->dim[i] != 1 && w->step[i] != n) return false;
    n *= w->dim[i];
  }
  return true;
}

struct ein_matrix {
  const void *data;
  bool t; /* stored with the last two groups changed */
};

static char *ein_take(char **scratch, int64_t n, size_t elem) {
  char *p = *scratch;
  *scratch += (size_t)ein_room(n) * elem;
  return p;
}

/* Operand `which` as (batch, first, second), summed over what only it has. */
static struct ein_matrix ein_operand_matrix(const tm_ein *e, const tm_view *x,
                                            int32_t which, const tm_ein_group *first,
                                            const tm_ein_group *second,
                                            char **scratch) {
  const tm_ein_axes *axes = &e->in[which];
  const tm_ein_group *only = &e->only[which];
  size_t elem = tm_dtype_size(x->dtype);
  const tm_ein_group *order[4] = {&e->batch, first, second, only};
  const tm_ein_group *turned[3] = {&e->batch, second, first};
  tm_k_walk w = ein_walk(e, axes, &x->shape, order, 4);
  int64_t rows =
      ein_product(e, &e->batch) * ein_product(e, first) * ein_product(e, second);
  int64_t sum = ein_product(e, only);
  char *in_order = ein_take(scratch, rows * sum, elem), *summed = in_order;
  if (only->n == 0 && ein_dense(&w)) return (struct ein_matrix){x->data, false};
  tm_k_walk t = ein_walk(e, axes, &x->shape, turned, 3);
  if (only->n == 0 && ein_dense(&t)) return (struct ein_matrix){x->data, true};
  tm_k_read_strided(in_order, x->data, &w, elem);
  if (only->n > 0) {
    summed = ein_take(scratch, rows, elem);
    tm_k_sum[x->dtype == TM_F32 ? TM_K_F32 : TM_K_F64](summed, in_order, (size_t)rows,
                                                       (size_t)sum, 1);
  }
  return (struct ein_matrix){summed, false};
}

static void ein_gemm(tm_dtype t, char *out, struct ein_matrix a, struct ein_matrix b,
                     int64_t batch, const tm_k_gemm *g) {
  size_t elem = tm_dtype_size(t);
  for (int64_t i = 0; i < batch; i++) {
    char *o = out + (size_t)(i * g->m * g->n) * elem;
    const char *x = (const char *)a.data + (size_t)(i * g->m * g->k) * elem;
    const char *y = (const char *)b.data + (size_t)(i * g->k * g->n) * elem;
    if (t == TM_F32)
      tm_k_gemm_f32((float *)(void *)o, (const float *)(const void *)x,
                    (const float *)(const void *)y, g);
    else
      tm_k_gemm_f64((double *)(void *)o, (const double *)(const void *)x,
                    (const double *)(const void *)y, g);
  }
}

static const float ein_one_f32 = 1;
static const double ein_one_f64 = 1;

/* Operand b as (batch, k, n). */
static struct ein_matrix ein_b(const tm_ein *e, const tm_view *in, char **scratch) {
  if (e->nin == 2) return ein_operand_matrix(e, &in[1], 1, &e->k, &e->n, scratch);
  return (struct ein_matrix){
      in[0].dtype == TM_F32 ? (const void *)&ein_one_f32 : (const void *)&ein_one_f64,
      false};
}

void tm_ein_run(const tm_ein *e, const tm_view *in, tm_view *out, void *scratch) {
  struct ein_sizes z = ein_sizes_of(e);
  size_t elem = tm_dtype_size(out->dtype);
  const tm_ein_group *order[3] = {&e->batch, &e->m, &e->n};
  char *at = scratch;
  if (tm_view_count(out) == 0) return;
  struct ein_matrix a = ein_operand_matrix(e, &in[0], 0, &e->m, &e->k, &at);
  struct ein_matrix b = ein_b(e, in, &at);
  tm_k_gemm g = {.m = z.m, .n = z.n, .k = z.k, .ta = a.t, .tb = b.t};
  tm_k_walk w = ein_walk(e, &e->out, &out->shape, order, 3);
  bool dense = ein_dense(&w);
  char *to = dense ? out->data : ein_take(&at, z.batch * z.m * z.n, elem);
  ein_gemm(out->dtype, to, a, b, z.batch, &g);
  if (!dense) tm_k_write_strided(out->data, to, &w, elem);
}

/* dy as (batch, m, n). */
static struct ein_matrix ein_dy(const tm_ein *e, const tm_view *dy, char **scratch) {
  const tm_ein_group *order[3] = {&e->batch, &e->m, &e->n};
  size_t elem = tm_dtype_size(dy->dtype);
  tm_k_walk w = ein_walk(e, &e->out, &dy->shape, order, 3);
  if (ein_dense(&w)) return (struct ein_matrix){dy->data, false};
  char *to = ein_take(scratch, tm_view_count(dy), elem);
  tm_k_read_strided(to, dy->data, &w, elem);
  return (struct ein_matrix){to, false};
}

/* dx += d (batch, first, second), repeated along what only this operand has. */
static void ein_spread(const tm_ein *e, const char *d, int32_t which,
                       const tm_ein_group *first, const tm_ein_group *second,
                       tm_view *dx, char *scratch) {
  const tm_ein_group *order[4] = {&e->batch, first, second, &e->only[which]};
  size_t elem = tm_dtype_size(dx->dtype);
  int64_t rows =
      ein_product(e, &e->batch) * ein_product(e, first) * ein_product(e, second);
  int64_t sum = ein_product(e, &e->only[which]);
  tm_k_walk w = ein_walk(e, &e->in[which], &dx->shape, order, 4);
  if (sum != 1) {
    tm_k_walk repeat = {.rank = 2, .dim = {rows, sum}, .step = {1, 0}};
    tm_k_read_strided(scratch, d, &repeat, elem);
    d = scratch;
  }
  memset(dx->data, 0, tm_view_bytes(dx));
  if (dx->dtype == TM_F32)
    tm_k_add_strided_f32(dx->data, (const float *)(const void *)d, &w);
  else
    tm_k_add_strided_f64(dx->data, (const double *)(const void *)d, &w);
}

void tm_ein_grad(const tm_ein *e, const tm_view *in, const tm_view *dy, int32_t which,
                 tm_view *dx, void *scratch) {
  struct ein_sizes z = ein_sizes_of(e);
  size_t elem = tm_dtype_size(dx->dtype);
  char *at = scratch;
  struct ein_matrix d = ein_dy(e, dy, &at);
  if (which == 0) { /* (m, k) = dy (m, n) b' */
    struct ein_matrix b = ein_b(e, in, &at);
    char *to = ein_take(&at, z.batch * z.m * z.k, elem);
    tm_k_gemm g = {.m = z.m, .n = z.k, .k = z.n, .tb = !b.t};
    ein_gemm(dx->dtype, to, d, b, z.batch, &g);
    ein_spread(e, to, 0, &e->m, &e->k, dx, at);
  } else { /* (k, n) = a' dy (m, n) */
    struct ein_matrix a = ein_operand_matrix(e, &in[0], 0, &e->m, &e->k, &at);
    char *to = ein_take(&at, z.batch * z.k * z.n, elem);
    tm_k_gemm g = {.m = z.k, .n = z.n, .k = z.m, .ta = !a.t};
    ein_gemm(dx->dtype, to, a, d, z.batch, &g);
    ein_spread(e, to, 1, &e->k, &e->n, dx, at);
  }
}
