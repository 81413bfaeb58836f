/*
 * test_folder.h - a folder for each test of a file: `dir`, made by make_dir, removed by
 * drop_dir.
 *
 *     cmocka_unit_test_setup_teardown(a_file_is_whole, make_dir, drop_dir)
 */
#ifndef TM_SPEC_TEST_FOLDER_H
#define TM_SPEC_TEST_FOLDER_H

#include "ckpt/file.h"
#include "test.h"

static char dir[200];

static inline int make_dir(void **state) {
  (void)state;
  test_dir(dir, sizeof dir);
  return 0;
}

/* System calls work again, too. */
static inline int drop_dir(void **state) {
  (void)state;
  tm_file_hook(NULL);
  test_rmdir(dir);
  return 0;
}

/* The path of a name in it. */
static inline char *in_dir(char *out, const char *name) {
  assert_ok(tm_path_join(out, dir, name, NULL));
  return out;
}

#endif
