/* How variables are kept to be made again. */
#include "base/mem.h"
#include "cluster/session_recipe.h"
#include "test.h"

static tm_tensor *zeros(int64_t n) {
  tm_shape s = {.rank = 1, .dim = {n}};
  tm_tensor *t;
  assert_int_equal(tm_tensor_new(TM_F32, &s, &t, NULL), TM_OK);
  memset(t->v.data, 0, (size_t)n * sizeof(float));
  return t;
}

/* A variable of n elements that is in the catalogue. */
static tm_var_info *known(tm_catalog *c, uint64_t uid, int64_t n, int32_t nshard) {
  tm_shape s = {.rank = 1, .dim = {n}};
  tm_var_info *v;
  assert_int_equal(tm_var_info_new(uid, TM_F32, &s, "v", true, nshard, &v), TM_OK);
  assert_int_equal(tm_catalog_add(c, v), TM_OK);
  return v;
}

static void named_initializers_and_small_values_are_kept_large_ones_become_zeros(
    void **state) {
  (void)state;
  tm_catalog *c;
  session_recipes rs = {0};
  assert_int_equal(tm_catalog_new(&c), TM_OK);
  tm_tensor *small = zeros(8), *large = zeros(TM_RECIPE_BYTES / 4 + 1);
  tm_init normal = {.kind = "normal", .b = 1, .seed = 7};
  tm_init by_small = {.kind = "value", .value = small};
  tm_init by_large = {.kind = "value", .value = large};
  tm_tensor *pieces[2] = {small, small};
  tm_var_info *v[4] = {known(c, 1, 8, 1), known(c, 2, 8, 1),
                       known(c, 3, TM_RECIPE_BYTES / 4 + 1, 1), known(c, 4, 16, 2)};
  assert_int_equal(tm_recipes_add(&rs, c, v[0], &normal, NULL), TM_OK);
  assert_int_equal(tm_recipes_add(&rs, c, v[1], &by_small, NULL), TM_OK);
  assert_int_equal(tm_recipes_add(&rs, c, v[2], &by_large, NULL), TM_OK);
  assert_int_equal(tm_recipes_add(&rs, c, v[3], &by_small, pieces), TM_OK);
  tm_tensor_unref(small);
  tm_tensor_unref(large);
  assert_int_equal(rs.n, 4);
  assert_string_equal(rs.r[0].init.kind, "normal");
  assert_int_equal(rs.r[0].init.seed, 7);
  assert_int_equal(rs.r[1].init.value->v.shape.dim[0], 8);
  assert_string_equal(rs.r[2].init.kind, "zeros");
  assert_true(rs.r[2].lossy && !rs.r[1].lossy && !rs.r[3].lossy);
  assert_ptr_equal(rs.r[3].piece[0], rs.r[3].piece[1]);
  for (int i = 0; i < 4; i++) tm_var_info_unref(v[i]);
  tm_recipes_release(&rs);
  tm_catalog_unref(c);
  assert_int_equal(tm_mem_live(), 0);
}

static void recipes_of_variables_that_are_gone_take_no_room(void **state) {
  (void)state;
  tm_catalog *c;
  session_recipes rs = {0};
  tm_init ones = {.kind = "ones"};
  assert_int_equal(tm_catalog_new(&c), TM_OK);
  for (uint64_t uid = 1; uid <= 1000; uid++) {
    tm_var_info *v = known(c, uid, 4, 1);
    assert_int_equal(tm_recipes_add(&rs, c, v, &ones, NULL), TM_OK);
    tm_var_info_unref(v);
    if (uid > 3) tm_catalog_del(c, uid);
  }
  assert_true(rs.cap <= 32);
  tm_recipes_prune(&rs, c);
  assert_int_equal(rs.n, 3);
  for (size_t i = 0; i < 3; i++) assert_int_equal(rs.r[i].info->uid, i + 1);
  tm_recipes_release(&rs);
  tm_catalog_unref(c);
  assert_int_equal(tm_mem_live(), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(
          named_initializers_and_small_values_are_kept_large_ones_become_zeros),
      cmocka_unit_test(recipes_of_variables_that_are_gone_take_no_room),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
