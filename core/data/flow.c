#include "base/mem.h"
#include "data/node.h"
#include "graph/exec.h"

/*
 * Design.  Transforms that pass elements on as they are: rep, take, skip, shard and
 * cache.  They move rows, never bytes.
 *
 * Invariants:
 *   (1) A repetition that gives no element ends rep, also for ever: nothing spins.
 *   (2) After its end a cursor answers TM_ERANGE without asking its input again.
 */
struct counted { /* rep, take, skip */
  tm_dataset ds;
  int64_t n;
};

struct counted_cursor {
  tm_cursor c;
  int64_t done; /* rep: whole repetitions; take, skip: elements */
  bool any;     /* rep: this repetition gave an element */
  bool end;
};

static int64_t counted_n(const tm_cursor *c) {
  return ((const struct counted *)c->ds)->n;
}

static void counted_pack(const tm_dataset *ds, tm_packer *w, tm_err *err) {
  (void)err;
  tm_pack_int(w, ((const struct counted *)ds)->n);
}

static void counted_reset(tm_cursor *c, bool fresh) {
  struct counted_cursor *k = (struct counted_cursor *)c;
  k->done = 0;
  k->any = k->end = false;
  tm_cursor_reset(c->in[0], fresh);
}

static tm_status counted_make(const tm_data_class *k, tm_dataset *in, int64_t n,
                              int64_t card, tm_dataset **out, tm_err *err) {
  TM_TRY(tm_dataset_like(k, in, out, err));
  ((struct counted *)*out)->n = n;
  (*out)->card = card;
  return TM_OK;
}

/* --- rep --- */
static tm_status rep_unpack(tm_unpacker *r, tm_dataset **in, int32_t nin,
                            tm_dataset **out, tm_err *err) {
  (void)nin;
  return tm_data_rep(in[0], tm_unpack_int(r), out, err);
}

/* The input ended: once more, or the end. */
static void rep_again(struct counted_cursor *k) {
  k->done++;
  k->end = !k->any || k->done == counted_n(&k->c); /* (1) */
  k->any = false;
  if (!k->end) tm_cursor_reset(k->c.in[0], false);
}

static tm_status rep_next(tm_cursor *c, tm_row *out, tm_err *err) {
  struct counted_cursor *k = (struct counted_cursor *)c;
  if (counted_n(c) == 0) k->end = true;
  while (!k->end) {
    tm_status s = tm_cursor_next(c->in[0], out, err);
    if (s != TM_ERANGE) {
      k->any = true; /* an error is an element that failed */
      return s;
    }
    rep_again(k);
  }
  return TM_ERANGE;
}

static tm_status rep_pass(tm_cursor *c, int64_t n, int64_t *done, tm_err *err) {
  struct counted_cursor *k = (struct counted_cursor *)c;
  if (counted_n(c) == 0) k->end = true;
  for (*done = 0; *done < n;) {
    int64_t d;
    if (k->end) return TM_ERANGE;
    if (tm_cancelled(c->cancel)) return tm_fail(err, TM_ECANCELLED, "rep: cancelled");
    tm_status s = tm_cursor_pass(c->in[0], n - *done, &d, err);
    *done += d;
    k->any |= d > 0;
    if (s == TM_ERANGE)
      rep_again(k);
    else if (s != TM_OK)
      return s;
  }
  return TM_OK;
}

const tm_data_class tm_class_rep = {
    .name = "rep",
    .code = 20,
    .nin = 1,
    .same = true,
    .size = sizeof(struct counted),
    .cursor_size = sizeof(struct counted_cursor),
    .pack = counted_pack,
    .unpack = rep_unpack,
    .next = rep_next,
    .pass = rep_pass,
    .reset = counted_reset,
};

tm_status tm_data_rep(tm_dataset *in, int64_t count, tm_dataset **out, tm_err *err) {
  int64_t card = in->card;
  *out = NULL;
  if (count < 0) {
    count = -1;
    card = card == 0 ? 0 : TM_DATA_INFINITE;
  } else if (count == 0) {
    card = 0;
  } else if (card > 0 && !tm_mul_i64(card, count, &card)) {
    return tm_fail(err, TM_EINVAL, "rep: %lld times is too many elements",
                   (long long)count);
  }
  return counted_make(&tm_class_rep, in, count, card, out, err);
}

/* --- take --- */
static tm_status take_unpack(tm_unpacker *r, tm_dataset **in, int32_t nin,
                             tm_dataset **out, tm_err *err) {
  (void)nin;
  return tm_data_take(in[0], tm_unpack_int(r), out, err);
}

static tm_status take_next(tm_cursor *c, tm_row *out, tm_err *err) {
  struct counted_cursor *k = (struct counted_cursor *)c;
  if (k->end || k->done == counted_n(c)) return TM_ERANGE;
  tm_status s = tm_cursor_next(c->in[0], out, err);
  if (s == TM_OK) k->done++;
  if (s == TM_ERANGE) k->end = true;
  return s;
}

static tm_status take_pass(tm_cursor *c, int64_t n, int64_t *done, tm_err *err) {
  struct counted_cursor *k = (struct counted_cursor *)c;
  int64_t left = counted_n(c) < 0 ? n : counted_n(c) - k->done;
  if (k->end) return TM_ERANGE;
  tm_status s = tm_cursor_pass(c->in[0], n < left ? n : left, done, err);
  k->done += *done;
  if (s == TM_ERANGE) k->end = true;
  return s == TM_OK && left < n ? TM_ERANGE : s;
}

const tm_data_class tm_class_take = {
    .name = "take",
    .code = 21,
    .nin = 1,
    .same = true,
    .size = sizeof(struct counted),
    .cursor_size = sizeof(struct counted_cursor),
    .pack = counted_pack,
    .unpack = take_unpack,
    .next = take_next,
    .pass = take_pass,
    .reset = counted_reset,
};

tm_status tm_data_take(tm_dataset *in, int64_t n, tm_dataset **out, tm_err *err) {
  int64_t card = in->card;
  if (n < 0) n = -1;
  if (n >= 0 && (card == TM_DATA_INFINITE || card > n)) card = n;
  if (n == 0) card = 0;
  return counted_make(&tm_class_take, in, n, card, out, err);
}

/* --- skip --- */
static tm_status skip_unpack(tm_unpacker *r, tm_dataset **in, int32_t nin,
                             tm_dataset **out, tm_err *err) {
  (void)nin;
  return tm_data_skip(in[0], tm_unpack_int(r), out, err);
}

static tm_status skip_next(tm_cursor *c, tm_row *out, tm_err *err) {
  struct counted_cursor *k = (struct counted_cursor *)c;
  if (k->end || counted_n(c) < 0) return TM_ERANGE;
  tm_status s = TM_OK;
  while (s == TM_OK && k->done < counted_n(c)) {
    if (tm_cancelled(c->cancel)) return tm_fail(err, TM_ECANCELLED, "skip: cancelled");
    s = tm_cursor_next(c->in[0], out, err);
    if (s != TM_OK) break;
    tm_row_release(out);
    k->done++;
  }
  if (s == TM_OK) s = tm_cursor_next(c->in[0], out, err);
  if (s == TM_ERANGE) k->end = true;
  return s;
}

static tm_status skip_pass(tm_cursor *c, int64_t n, int64_t *done, tm_err *err) {
  struct counted_cursor *k = (struct counted_cursor *)c;
  int64_t d = 0;
  if (k->end || counted_n(c) < 0) return TM_ERANGE;
  tm_status s = tm_cursor_pass(c->in[0], counted_n(c) - k->done, &d, err);
  k->done += d;
  if (s == TM_OK) s = tm_cursor_pass(c->in[0], n, done, err);
  if (s == TM_ERANGE) k->end = true;
  return s;
}

const tm_data_class tm_class_skip = {
    .name = "skip",
    .code = 22,
    .nin = 1,
    .same = true,
    .size = sizeof(struct counted),
    .cursor_size = sizeof(struct counted_cursor),
    .pack = counted_pack,
    .unpack = skip_unpack,
    .next = skip_next,
    .pass = skip_pass,
    .reset = counted_reset,
};

tm_status tm_data_skip(tm_dataset *in, int64_t n, tm_dataset **out, tm_err *err) {
  int64_t card = in->card;
  if (n < 0) n = -1;
  if (n < 0)
    card = 0;
  else if (card >= 0)
    card = card > n ? card - n : 0;
  return counted_make(&tm_class_skip, in, n, card, out, err);
}

/* --- shard --- */
struct shard {
  tm_dataset ds;
  int64_t count, index;
  tm_graph *graph; /* of the index, or NULL */
  tm_program *program;
};

struct shard_cursor {
  tm_cursor c;
  int64_t index; /* resolved */
  int64_t seen;  /* elements of the input so far, modulo count */
  bool end;
};

static void shard_release(tm_dataset *ds) {
  struct shard *h = (struct shard *)ds;
  if (h->program) tm_program_unref(h->program);
  tm_graph_unref(h->graph);
}

static void shard_pack(const tm_dataset *ds, tm_packer *w, tm_err *err) {
  const struct shard *h = (const struct shard *)ds;
  (void)err;
  tm_pack_array(w, 3);
  tm_pack_int(w, h->count);
  tm_pack_int(w, h->index);
  if (h->graph)
    tm_data_pack_graph(w, h->graph);
  else
    tm_pack_nil(w);
}

static tm_status shard_unpack(tm_unpacker *r, tm_dataset **in, int32_t nin,
                              tm_dataset **out, tm_err *err) {
  (void)nin;
  tm_unpack_array(r, 3, 3);
  int64_t count = tm_unpack_int(r), index = tm_unpack_int(r);
  if (tm_unpack_nil(r)) return tm_data_shard(in[0], count, index, NULL, out, err);
  tm_graph *g;
  TM_TRY(tm_data_unpack_graph(r, &g, err));
  tm_status s = tm_data_shard(in[0], count, 0, g, out, err);
  tm_graph_unref(g);
  return s;
}

static tm_status shard_open(tm_cursor *c, tm_err *err) {
  const struct shard *h = (const struct shard *)c->ds;
  struct shard_cursor *k = (struct shard_cursor *)c;
  const tm_iter_env *e = &c->env->env;
  k->index = h->index;
  if (h->program) {
    tm_run_env run = {.seed = e->seed,
                      .worker = e->worker < 0 ? 0 : e->worker,
                      .cancel = c->cancel,
                      .threads = 1};
    tm_tensor *t = NULL;
    TM_TRY(tm_program_run(h->program, NULL, 0, NULL, &run, &t, err));
    k->index = tm_view_get_i64(&t->v, 0);
    tm_tensor_unref(t);
  } else if (h->index == TM_DATA_WORKER) {
    k->index = e->worker < 0 ? 0 : e->worker % h->count;
  }
  if (k->index >= 0 && k->index < h->count) return TM_OK;
  return tm_fail(err, TM_EINVAL, "shard: index %lld is not in 0..%lld",
                 (long long)k->index, (long long)h->count - 1);
}

static tm_status shard_next(tm_cursor *c, tm_row *out, tm_err *err) {
  struct shard_cursor *k = (struct shard_cursor *)c;
  const struct shard *h = (const struct shard *)c->ds;
  while (!k->end) {
    tm_status s = tm_cursor_next(c->in[0], out, err);
    k->end = s == TM_ERANGE;
    if (s != TM_OK) return s;
    bool ours = k->seen == k->index;
    k->seen = k->seen + 1 == h->count ? 0 : k->seen + 1;
    if (ours) return TM_OK;
    tm_row_release(out);
  }
  return TM_ERANGE;
}

static tm_status shard_pass(tm_cursor *c, int64_t n, int64_t *done, tm_err *err) {
  struct shard_cursor *k = (struct shard_cursor *)c;
  int64_t count = ((const struct shard *)c->ds)->count, want, d;
  int64_t before = (k->index - k->seen + count) % count; /* elements before ours */
  if (k->end) return TM_ERANGE;
  if (!tm_mul_i64(n - 1, count, &want) || want > INT64_MAX - before - 1)
    want = INT64_MAX - before - 1;
  tm_status s = tm_cursor_pass(c->in[0], before + 1 + want, &d, err);
  *done = d > before ? (d - before - 1) / count + 1 : 0;
  k->seen = (k->seen + d % count) % count;
  k->end = s == TM_ERANGE;
  return s;
}

static void shard_reset(tm_cursor *c, bool fresh) {
  struct shard_cursor *k = (struct shard_cursor *)c;
  k->seen = 0;
  k->end = false;
  tm_cursor_reset(c->in[0], fresh);
}

static bool shard_by_worker(const tm_dataset *ds) {
  const struct shard *h = (const struct shard *)ds;
  return h->graph || h->index == TM_DATA_WORKER;
}

const tm_data_class tm_class_shard = {
    .name = "shard",
    .code = 23,
    .nin = 1,
    .same = true,
    .size = sizeof(struct shard),
    .cursor_size = sizeof(struct shard_cursor),
    .release = shard_release,
    .pack = shard_pack,
    .unpack = shard_unpack,
    .open = shard_open,
    .next = shard_next,
    .pass = shard_pass,
    .reset = shard_reset,
    .by_worker = shard_by_worker,
};

/* How many elements: known without the index where count divides n. */
static int64_t shard_card(int64_t n, int64_t count, int64_t index) {
  if (n < 0) return n;
  if (index >= 0) return n / count + (index < n % count);
  return n % count == 0 ? n / count : TM_DATA_UNKNOWN;
}

tm_status tm_data_shard(tm_dataset *in, int64_t count, int64_t index,
                        tm_graph *index_graph, tm_dataset **out, tm_err *err) {
  *out = NULL;
  if (count < 1)
    return tm_fail(err, TM_EINVAL, "shard: count is %lld, must be at least 1",
                   (long long)count);
  if (!index_graph && index != TM_DATA_WORKER && (index < 0 || index >= count))
    return tm_fail(err, TM_EINVAL, "shard: index %lld is not in 0..%lld",
                   (long long)index, (long long)count - 1);
  if (index_graph) {
    TM_TRY(tm_data_graph_check(index_graph, NULL, 0, "shard", err));
    const tm_type *t = tm_graph_type(index_graph, index_graph->out[0]);
    if (index_graph->nout != 1 || !tm_dtype_is_int(t->dtype) || t->shape.rank != 0)
      return tm_fail(err, TM_EINVAL, "shard: the index is one integer scalar");
    index = TM_DATA_WORKER;
  }
  TM_TRY(tm_dataset_like(&tm_class_shard, in, out, err));
  struct shard *h = (struct shard *)*out;
  h->count = count;
  h->index = index;
  h->ds.card = shard_card(in->card, count, index);
  tm_status s = TM_OK;
  if (index_graph) {
    h->graph = tm_graph_ref(index_graph);
    s = tm_program_new(index_graph, &h->program, err);
  }
  if (s != TM_OK) {
    tm_dataset_unref(*out);
    *out = NULL;
  }
  return s;
}

/* --- cache --- */
struct cache_cursor {
  tm_cursor c;
  tm_row *row; /* kept */
  size_t n, cap;
  size_t i;      /* next to give of a complete cache */
  bool complete; /* the input ended, nothing failed */
  bool end;      /* of an incomplete pass */
  bool failed;   /* an element is missing: not complete at the end */
};

static tm_status cache_unpack(tm_unpacker *r, tm_dataset **in, int32_t nin,
                              tm_dataset **out, tm_err *err) {
  (void)nin;
  tm_unpack_nil(r);
  return tm_data_cache(in[0], out, err);
}

static void cache_drop(struct cache_cursor *k) {
  while (k->n > 0) tm_row_release(&k->row[--k->n]);
  if (k->cap) tm_free(k->row, k->cap * sizeof *k->row);
  k->row = NULL;
  k->cap = 0;
}

static tm_status cache_keep(struct cache_cursor *k, const tm_row *r, tm_err *err) {
  if (k->n == k->cap) {
    size_t cap = k->cap ? 2 * k->cap : 64;
    void *p = tm_realloc(k->row, k->cap * sizeof *k->row, cap * sizeof *k->row);
    if (!p) return tm_nomem(err, "cache");
    k->row = p;
    k->cap = cap;
  }
  k->row[k->n++] = tm_row_of(r->b, r->i);
  return TM_OK;
}

static tm_status cache_next(tm_cursor *c, tm_row *out, tm_err *err) {
  struct cache_cursor *k = (struct cache_cursor *)c;
  if (k->complete) {
    if (k->i == k->n) return TM_ERANGE;
    *out = tm_row_of(k->row[k->i].b, k->row[k->i].i);
    k->i++;
    return TM_OK;
  }
  if (k->end) return TM_ERANGE;
  tm_status s = tm_cursor_next(c->in[0], out, err);
  if (s == TM_OK) {
    s = cache_keep(k, out, err);
    if (s != TM_OK) tm_row_release(out);
  }
  if (s == TM_ERANGE) {
    k->end = true;
    k->complete = !k->failed;
    k->i = k->n;
  } else if (s != TM_OK) {
    k->failed = true;
  }
  return s;
}

/* What is not kept yet has to be made. */
static tm_status cache_pass(tm_cursor *c, int64_t n, int64_t *done, tm_err *err) {
  struct cache_cursor *k = (struct cache_cursor *)c;
  if (!k->complete) return tm_cursor_walk(c, n, done, err);
  size_t left = k->n - k->i;
  *done = (uint64_t)n < left ? n : (int64_t)left;
  k->i += (size_t)*done;
  return *done == n ? TM_OK : TM_ERANGE;
}

static void cache_reset(tm_cursor *c, bool fresh) {
  struct cache_cursor *k = (struct cache_cursor *)c;
  k->i = 0;
  if (k->complete) return;
  cache_drop(k);
  k->end = k->failed = false;
  tm_cursor_reset(c->in[0], fresh);
}

static void cache_close(tm_cursor *c) { cache_drop((struct cache_cursor *)c); }

const tm_data_class tm_class_cache = {
    .name = "cache",
    .code = 24,
    .nin = 1,
    .same = true,
    .size = sizeof(tm_dataset),
    .cursor_size = sizeof(struct cache_cursor),
    .unpack = cache_unpack,
    .next = cache_next,
    .pass = cache_pass,
    .reset = cache_reset,
    .close = cache_close,
};

tm_status tm_data_cache(tm_dataset *in, tm_dataset **out, tm_err *err) {
  return tm_dataset_like(&tm_class_cache, in, out, err);
}
