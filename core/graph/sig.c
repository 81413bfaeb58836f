#include "graph/sig.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

/*
 * Design.  A cursor over the text and small functions, one a production:
 *
 *     sig    = [input {"," input}] [";" attrs] ["|" attrs]
 *     input  = name ["..."] ["?"]
 *     attrs  = attr {"," attr}
 *     attr   = name ":" kind ["?" | "=" value]
 *     value  = word | "'" text "'" | "[" [number {"," number}] "]"
 *
 * A list input is the last one; "xs...?" may be empty.
 */
struct sig_cursor {
  const char *p;
  tm_sig *sig;
  tm_sig_pool *pool;
};

static const struct {
  const char *name;
  tm_attr_kind kind;
} sig_kinds[] = {
    {"bool", TM_ATTR_BOOL},   {"int", TM_ATTR_INT},       {"float", TM_ATTR_FLOAT},
    {"str", TM_ATTR_STR},     {"dtype", TM_ATTR_DTYPE},   {"axis", TM_ATTR_AXIS},
    {"axes", TM_ATTR_AXES},   {"ints", TM_ATTR_INTS},     {"floats", TM_ATTR_FLOATS},
    {"shape", TM_ATTR_SHAPE}, {"tensor", TM_ATTR_TENSOR}, {"func", TM_ATTR_FUNC},
};

const char *tm_attr_kind_name(tm_attr_kind k) {
  for (size_t i = 0; i < TM_COUNT(sig_kinds); i++)
    if (sig_kinds[i].kind == k) return sig_kinds[i].name;
  return "nothing";
}

static void sig_space(struct sig_cursor *c) {
  while (*c->p == ' ' || *c->p == '\n') c->p++;
}

static bool sig_eat(struct sig_cursor *c, const char *word) {
  sig_space(c);
  size_t n = strlen(word);
  if (strncmp(c->p, word, n) != 0) return false;
  c->p += n;
  return true;
}

static tm_status sig_name(struct sig_cursor *c, char *out, size_t cap) {
  sig_space(c);
  size_t n = 0;
  while (isalnum((unsigned char)c->p[n]) || c->p[n] == '_') n++;
  if (n == 0 || n >= cap) return TM_EINVAL;
  memcpy(out, c->p, n);
  out[n] = '\0';
  c->p += n;
  return TM_OK;
}

static tm_status sig_inputs(struct sig_cursor *c) {
  tm_sig *s = c->sig;
  sig_space(c);
  if (*c->p == '\0' || *c->p == ';' || *c->p == '|') return TM_OK;
  do {
    if (s->nnames == (int32_t)TM_COUNT(s->in_name) || s->list) return TM_EINVAL;
    TM_TRY(sig_name(c, s->in_name[s->nnames++], sizeof s->in_name[0]));
    s->list = sig_eat(c, "...");
    s->max_in = s->list ? TM_MAX_LIST : s->nnames;
    if (sig_eat(c, "?")) continue;
    if (s->min_in != s->nnames - 1) return TM_EINVAL; /* after an optional one */
    s->min_in = s->nnames;
  } while (sig_eat(c, ","));
  return TM_OK;
}

/* A word, or a text in single quotes, kept in the pool. */
static tm_status sig_text(struct sig_cursor *c, tm_attr *a) {
  tm_sig_pool *pool = c->pool;
  sig_space(c);
  bool quoted = *c->p == '\'';
  if (quoted) c->p++;
  size_t n = strcspn(c->p, quoted ? "'" : " ,|");
  if (n >= sizeof pool->text - pool->ntext) return TM_EINVAL;
  a->u.s = pool->text + pool->ntext;
  memcpy(a->u.s, c->p, n);
  a->n = (int32_t)n;
  pool->ntext += n + 1; /* the pool is zeroed: terminated */
  c->p += n;
  if (!quoted) return TM_OK;
  if (*c->p != '\'') return TM_EINVAL; /* the text ends within the quotes */
  c->p++;
  return TM_OK;
}

static tm_status sig_number(struct sig_cursor *c, double *out) {
  char *end;
  sig_space(c);
  *out = strtod(c->p, &end);
  if (end == c->p) return TM_EINVAL;
  c->p = end;
  return TM_OK;
}

static tm_status sig_list(struct sig_cursor *c, tm_attr *a) {
  tm_sig_pool *pool = c->pool;
  bool floats = a->kind == TM_ATTR_FLOATS;
  if (floats)
    a->u.fs = pool->floats + pool->nfloats;
  else
    a->u.is = pool->ints + pool->nints;
  if (!sig_eat(c, "[")) return TM_EINVAL;
  if (sig_eat(c, "]")) return TM_OK;
  do {
    double x;
    TM_TRY(sig_number(c, &x));
    if (floats) {
      if (pool->nfloats == (int32_t)TM_COUNT(pool->floats)) return TM_EINVAL;
      pool->floats[pool->nfloats++] = x;
    } else {
      if (pool->nints == (int32_t)TM_COUNT(pool->ints)) return TM_EINVAL;
      pool->ints[pool->nints++] = (int64_t)x;
    }
    a->n++;
  } while (sig_eat(c, ","));
  return sig_eat(c, "]") ? TM_OK : TM_EINVAL;
}

static tm_status sig_dtype(struct sig_cursor *c, tm_attr *a) {
  char name[24];
  TM_TRY(sig_name(c, name, sizeof name));
  a->u.i = tm_dtype_of_name(name);
  return a->u.i == TM_DTYPE_NONE ? TM_EINVAL : TM_OK;
}

static tm_status sig_default(struct sig_cursor *c, tm_attr *a) {
  double x;
  switch (a->kind) {
    case TM_ATTR_BOOL:
      a->u.b = sig_eat(c, "true");
      return a->u.b || sig_eat(c, "false") ? TM_OK : TM_EINVAL;
    case TM_ATTR_INT:
    case TM_ATTR_AXIS:
      TM_TRY(sig_number(c, &x));
      a->u.i = (int64_t)x;
      return TM_OK;
    case TM_ATTR_FLOAT:
      return sig_number(c, &a->u.f);
    case TM_ATTR_STR:
      return sig_text(c, a);
    case TM_ATTR_DTYPE:
      return sig_dtype(c, a);
    case TM_ATTR_AXES:
    case TM_ATTR_INTS:
    case TM_ATTR_SHAPE:
    case TM_ATTR_FLOATS:
      return sig_list(c, a);
    default:
      return TM_EINVAL; /* tensors and functions have no default */
  }
}

static tm_status sig_attr(struct sig_cursor *c, bool named_only) {
  char kind[24];
  if (c->sig->nattr == TM_MAX_ATTRS) return TM_EINVAL;
  tm_param *p = &c->sig->attr[c->sig->nattr++];
  TM_TRY(sig_name(c, p->name, sizeof p->name));
  if (!sig_eat(c, ":")) return TM_EINVAL;
  TM_TRY(sig_name(c, kind, sizeof kind));
  for (size_t i = 0; i < TM_COUNT(sig_kinds); i++)
    if (strcmp(sig_kinds[i].name, kind) == 0) p->kind = sig_kinds[i].kind;
  if (p->kind == TM_ATTR_NONE) return TM_EINVAL;
  p->named_only = named_only;
  p->optional = sig_eat(c, "?");
  if (p->optional || !sig_eat(c, "=")) return TM_OK;
  p->dflt.kind = p->kind;
  return sig_default(c, &p->dflt);
}

static tm_status sig_attrs(struct sig_cursor *c, bool named_only) {
  do TM_TRY(sig_attr(c, named_only));
  while (sig_eat(c, ","));
  return TM_OK;
}

static tm_status sig_all(struct sig_cursor *c) {
  TM_TRY(sig_inputs(c));
  if (sig_eat(c, ";")) TM_TRY(sig_attrs(c, false));
  if (sig_eat(c, "|")) TM_TRY(sig_attrs(c, true));
  sig_space(c);
  return *c->p ? TM_EINVAL : TM_OK;
}

tm_status tm_sig_parse(const char *text, tm_sig *sig, tm_sig_pool *pool, tm_err *err) {
  struct sig_cursor c = {text, sig, pool};
  memset(sig, 0, sizeof *sig);
  memset(pool, 0, sizeof *pool);
  tm_status s = sig_all(&c);
  if (s) return tm_fail(err, s, "signature \"%s\" is wrong at \"%.20s\"", text, c.p);
  return TM_OK;
}
