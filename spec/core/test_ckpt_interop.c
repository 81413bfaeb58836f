/* A file that the Python package wrote (spec/interop/safetensors_check.py); without an
 * argument there is nothing to compare. */
#include "ckpt/safetensors.h"
#include "test.h"

static const char *path;

static void a_file_of_the_python_package_is_read(void **state) {
  (void)state;
  if (!path) skip();
  tm_err err = {0};
  tm_st_file *f;
  assert_ok_err(tm_st_open(path, &f, &err), &err);
  assert_int_equal(tm_st_count(f), 6);
  const tm_st_entry *a = tm_st_find(f, "a"), *name = tm_st_find(f, "имя");
  float x[6];
  uint8_t u[3];
  assert_ok_err(tm_st_read(f, a, 0, x, sizeof x, &err), &err);
  for (int i = 0; i < 6; i++) assert_true(x[i] == (float)i);
  assert_int_equal(a->shape.dim[1], 3);
  assert_ok_err(tm_st_read(f, name, 0, u, sizeof u, &err), &err);
  assert_int_equal(u[2], 3);
  assert_int_equal(tm_st_find(f, "b")->dtype, TM_BOOL);
  assert_int_equal(tm_st_find(f, "c")->shape.rank, 0);
  assert_int_equal(tm_st_find(f, "half")->dtype, TM_DTYPE_NONE);
  assert_int_equal(tm_st_find(f, "none")->begin, tm_st_find(f, "none")->end);
  tm_st_close(f);
}

int main(int argc, char **argv) {
  path = argc > 1 ? argv[1] : NULL;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_file_of_the_python_package_is_read),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
