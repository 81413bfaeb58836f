/* The lists of closures that wait, and that are out. */
#include "cluster/coord_queue.h"
#include "test.h"

enum { N = 12 };

/* The ids in a list, checked against its count and its tail. */
static void same_ids(const coord_queue *q, const uint64_t *id, size_t n) {
  const coord_item *it = q->head, *last = NULL;
  for (size_t i = 0; i < n; i++, it = it->next) {
    assert_non_null(it);
    assert_int_equal(it->id, id[i]);
    last = it;
  }
  assert_null(it);
  assert_ptr_equal(q->tail, last);
  assert_int_equal(q->n, n);
}

static void fill(coord_item *items) {
  for (uint64_t i = 0; i < N; i++) items[i] = (coord_item){.id = i};
}

static void a_closure_that_runs_again_stands_before_later_ones(void **state) {
  (void)state;
  coord_item it[N];
  coord_queue q;
  fill(it);
  coord_queue_init(&q, N);
  const int order[] = {3, 5, 9, 1, 4, 11, 10};
  for (size_t i = 0; i < TM_COUNT(order); i++)
    assert_int_equal(coord_queue_push(&q, &it[order[i]]), TM_OK);
  same_ids(&q, (uint64_t[]){1, 3, 4, 5, 9, 10, 11}, 7);
  assert_ptr_equal(coord_queue_remove(&q, 11), &it[11]);
  assert_ptr_equal(coord_queue_remove(&q, 4), &it[4]);
  assert_null(coord_queue_remove(&q, 4));
  assert_ptr_equal(coord_queue_pop(&q), &it[1]);
  same_ids(&q, (uint64_t[]){3, 5, 9, 10}, 4);
}

static void closures_of_a_lost_worker_go_back_to_their_places(void **state) {
  (void)state;
  coord_item it[N];
  coord_queue wait, first, second;
  fill(it);
  coord_queue_init(&wait, N);
  coord_queue_init(&first, N);
  coord_queue_init(&second, N);
  for (int i = 0; i < N; i++)
    assert_int_equal(
        coord_queue_push(i < 4 ? (i % 2 ? &first : &second) : &wait, &it[i]), TM_OK);
  coord_queue_give_back(&wait, &second); /* 0, 2 */
  same_ids(&second, NULL, 0);
  coord_queue_give_back(&wait, &first); /* 1, 3 */
  same_ids(&wait, (uint64_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, N);
  coord_queue_give_back(&first, &wait);
  coord_queue_give_back(&first, &wait);
  same_ids(&first, (uint64_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, N);
}

static void a_full_list_takes_back_but_not_more(void **state) {
  (void)state;
  coord_item it[N];
  coord_queue q;
  fill(it);
  coord_queue_init(&q, 2);
  assert_int_equal(coord_queue_push(&q, &it[1]), TM_OK);
  assert_int_equal(coord_queue_push(&q, &it[2]), TM_OK);
  assert_int_equal(coord_queue_push(&q, &it[3]), TM_EAGAIN);
  coord_queue_push_front(&q, &it[0]);
  same_ids(&q, (uint64_t[]){0, 1, 2}, 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_closure_that_runs_again_stands_before_later_ones),
      cmocka_unit_test(closures_of_a_lost_worker_go_back_to_their_places),
      cmocka_unit_test(a_full_list_takes_back_but_not_more),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
