/*
 * dataset.h - a description of data: a source and the transforms after it.
 *
 * A dataset holds no position and no code, only what is needed to make iterators
 * (data/iterator.h), here or in another process (data/codec.h).  An element is a
 * flat list of tensors, the same number and types each time; who wants nested
 * tables keeps the structure beside it (list positions in order, string keys
 * sorted).
 *
 *     tm_dataset *a = NULL, *b = NULL;
 *     TM_TRY(tm_data_slices(tensors, 2, &a, err));
 *     s = tm_data_batch(a, 32, false, &b, err);
 *     tm_dataset_unref(a);      -- b keeps it
 *
 * Every transform takes a new reference to its input, gives a new dataset with one
 * reference, and on failure leaves *out NULL.  Chains are at most TM_DATA_DEPTH deep,
 * elements at most TM_DATA_WIDTH tensors wide.
 *
 * Ownership: refcounted, immutable.
 * Threads:   any.
 */
#ifndef TM_DATA_DATASET_H
#define TM_DATA_DATASET_H

#include "graph/graph.h"

typedef struct tm_dataset tm_dataset;

enum { TM_DATA_DEPTH = 128, TM_DATA_WIDTH = 1024 };
enum { TM_DATA_INFINITE = -1, TM_DATA_UNKNOWN = -2 };
enum { TM_DATA_WORKER = -1 }; /* tm_data_shard: the index of the worker */

tm_dataset *tm_dataset_ref(tm_dataset *ds);
void tm_dataset_unref(tm_dataset *ds); /* ds may be NULL */

/* Tensors an element has, and their types (-1: a size that varies). */
int32_t tm_dataset_width(const tm_dataset *ds);
const tm_type *tm_dataset_types(const tm_dataset *ds);
/* Name of tensor i as its file gives it: csv columns, also after transforms that
 * leave elements as they are or stack them; NULL for everything else. */
const char *tm_dataset_name(const tm_dataset *ds, int32_t i);
/* Number of elements, TM_DATA_INFINITE or TM_DATA_UNKNOWN, by TensorFlow's rules. */
int64_t tm_dataset_cardinality(const tm_dataset *ds);
/* Its elements depend on which worker makes them: a shard by the worker's index, or a
 * function that asks for it. */
bool tm_dataset_by_worker(const tm_dataset *ds);

/* --- transforms --- */

/* Each element through a graph: its arguments are the element's tensors in order,
 * its outputs the new element.  TM_EINVAL: arguments of another number or type, no
 * outputs, or ops that touch variables or iterators. */
TM_CHECKED tm_status tm_data_map(tm_dataset *in, tm_graph *g, tm_dataset **out,
                                 tm_err *err);
/* The elements for which the graph's one output, a bool scalar, is true. */
TM_CHECKED tm_status tm_data_filter(tm_dataset *in, tm_graph *g, tm_dataset **out,
                                    tm_err *err);

/* Draw from a buffer of `buffer` >= 1 elements.  With a seed (has_seed) the order
 * depends on it, else on the iterator's seed and worker.  With `reshuffle` every
 * repetition (rep above it, a new epoch of the iterator) has another order, which a
 * re-run repeats. */
TM_CHECKED tm_status tm_data_shuffle(tm_dataset *in, int64_t buffer, bool has_seed,
                                     uint64_t seed, bool reshuffle, tm_dataset **out,
                                     tm_err *err);

/* n >= 1 elements stacked on a new first axis; the last may be smaller, or is left
 * out with drop_remainder (then the axis has size n in the types, else -1). */
TM_CHECKED tm_status tm_data_batch(tm_dataset *in, int64_t n, bool drop_remainder,
                                   tm_dataset **out, tm_err *err);
/* The rows of each element's tensors as elements: undoes batch. */
TM_CHECKED tm_status tm_data_unbatch(tm_dataset *in, tm_dataset **out, tm_err *err);

TM_CHECKED tm_status tm_data_rep(tm_dataset *in, int64_t count, /* < 0: for ever */
                                 tm_dataset **out, tm_err *err);
TM_CHECKED tm_status tm_data_take(tm_dataset *in, int64_t n, /* < 0: all */
                                  tm_dataset **out, tm_err *err);
TM_CHECKED tm_status tm_data_skip(tm_dataset *in, int64_t n, /* < 0: all */
                                  tm_dataset **out, tm_err *err);

/* Elements index, index + count, ...  index 0..count-1, or TM_DATA_WORKER: the
 * worker's index modulo count (0 on the chief), or from index_graph (no arguments,
 * one integer scalar; NULL: none), run when an iterator is made. */
TM_CHECKED tm_status tm_data_shard(tm_dataset *in, int64_t count, int64_t index,
                                   tm_graph *index_graph, tm_dataset **out,
                                   tm_err *err);

/* A thread of its own keeps up to n >= 1 elements ready. */
TM_CHECKED tm_status tm_data_prefetch(tm_dataset *in, int64_t n, tm_dataset **out,
                                      tm_err *err);
/* Keeps the elements of the first complete pass in memory, per iterator. */
TM_CHECKED tm_status tm_data_cache(tm_dataset *in, tm_dataset **out, tm_err *err);
/* A running number (int64 scalar, from start) before each element's tensors. */
TM_CHECKED tm_status tm_data_enumerate(tm_dataset *in, int64_t start, tm_dataset **out,
                                       tm_err *err);

/* Elements side by side, as many as the shortest has.  n >= 1. */
TM_CHECKED tm_status tm_data_zip(tm_dataset *const *in, int32_t n, tm_dataset **out,
                                 tm_err *err);
/* One after the other: dtypes and ranks agree, sizes that differ become -1. */
TM_CHECKED tm_status tm_data_concatenate(tm_dataset *a, tm_dataset *b, tm_dataset **out,
                                         tm_err *err);

#endif
