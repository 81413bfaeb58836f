/* All data of a checkpoint in one file, and the description of a model beside. */
#include <stdlib.h>

#include "ckpt/file.h"
#include "ckpt/reader.h"
#include "ckpt/sealed.h"
#include "ckpt/single.h"
#include "test_folder.h"

/* (n) of float32: from, from + 1, ... */
static tm_tensor *floats(int64_t n, float from) {
  tm_shape s = tm_shape_of(1, &n);
  tm_tensor *t;
  if (tm_tensor_new(TM_F32, &s, &t, NULL)) return NULL;
  for (int64_t i = 0; i < n; i++) ((float *)t->v.data)[i] = from + (float)i;
  return t;
}

static tm_status put(tm_ckpt_single *f, int64_t n, float from, tm_err *err) {
  tm_tensor *t = floats(n, from);
  tm_status s = t ? tm_ckpt_single_put(f, &t->v, err) : TM_ENOMEM;
  tm_tensor_unref(t);
  return s;
}

static tm_st_item items[3] = {{.name = "a", .dtype = TM_F32},
                              {.name = "none", .dtype = TM_I64},
                              {.name = "b", .dtype = TM_F32}};

static void sizes(void) {
  items[0].shape = tm_shape_of(1, (int64_t[]){5});
  items[1].shape = tm_shape_of(1, (int64_t[]){0});
  items[2].shape = tm_shape_of(0, NULL);
}

static tm_status save(const char *path, tm_err *err) {
  tm_ckpt_writer *w;
  tm_ckpt_single *f = NULL;
  json_t *model = json_pack("{s:s}", "format", "test");
  tm_status s = tm_ckpt_create(path, &w, err);
  if (!s) s = model ? tm_ckpt_attach(w, model, err) : TM_ENOMEM;
  if (!s) s = tm_ckpt_single_open(w, items, 3, &f, err);
  if (!s) s = put(f, 2, 1, err);
  if (!s) s = put(f, 3, 3, err);
  tm_shape none = tm_shape_of(0, NULL);
  tm_tensor *t = NULL;
  if (!s) s = tm_tensor_new(TM_F32, &none, &t, err);
  if (!s) {
    *(float *)t->v.data = 9;
    s = tm_ckpt_single_put(f, &t->v, err);
  }
  tm_tensor_unref(t);
  if (!s) s = tm_ckpt_single_close(f, err);
  tm_ckpt_single_free(f);
  if (!s) s = tm_ckpt_commit(w, err);
  tm_ckpt_writer_free(w);
  json_decref(model);
  return s;
}

static void what_was_streamed_is_read_like_any_checkpoint(void **state) {
  (void)state;
  char path[TM_PATH_MAX], file[TM_PATH_MAX];
  tm_ckpt_reader *r;
  tm_tensor *t;
  tm_err err = {0};
  json_t *model;
  sizes();
  assert_ok_err(save(in_dir(path, "m"), &err), &err);
  assert_ok_err(tm_ckpt_open(path, &r, &err), &err);
  assert_ok(tm_ckpt_verify(r, &err));
  assert_int_equal(tm_ckpt_ntensor(r), 3);
  assert_ok_err(tm_ckpt_read(r, tm_ckpt_find(r, "a"), 1, 3, &t, &err), &err);
  for (int i = 0; i < 3; i++) assert_true(((float *)t->v.data)[i] == (float)(2 + i));
  tm_tensor_unref(t);
  assert_ok_err(tm_ckpt_read(r, tm_ckpt_find(r, "b"), 0, 1, &t, &err), &err);
  assert_true(*(float *)t->v.data == 9);
  tm_tensor_unref(t);
  tm_ckpt_close(r);
  tm_st_file *f; /* and by any tool */
  assert_ok(tm_path_join(file, path, TM_CKPT_MODEL_DATA, NULL));
  assert_ok_err(tm_st_open(file, &f, &err), &err);
  assert_int_equal(tm_st_count(f), 3);
  tm_st_close(f);
  assert_ok_err(tm_sealed_read(path, TM_CKPT_MODEL, &model, &err), &err);
  assert_string_equal(json_string_value(json_object_get(model, "format")), "test");
  json_decref(model);
  assert_ok_err(save(path, &err), &err); /* replaced */
  assert_ok(tm_ckpt_remove(path, &err));
}

static void pieces_that_were_not_announced_are_refused(void **state) {
  (void)state;
  char path[TM_PATH_MAX];
  tm_ckpt_writer *w;
  tm_ckpt_single *f;
  tm_err err = {0};
  sizes();
  assert_ok(tm_ckpt_create(in_dir(path, "bad"), &w, &err));
  assert_ok(tm_ckpt_single_open(w, items, 3, &f, &err));
  assert_int_equal(put(f, 6, 1, &err), TM_EINVAL);
  assert_ok(put(f, 4, 1, &err));
  assert_int_equal(tm_ckpt_single_close(f, &err), TM_EPRECOND);
  assert_int_equal(put(f, 2, 1, &err), TM_EINVAL);
  tm_ckpt_single_free(f);
  tm_ckpt_writer_free(w);
  tm_st_item text = {.name = "s", .dtype = TM_STRING};
  assert_ok(tm_ckpt_create(path, &w, &err));
  assert_int_equal(tm_ckpt_single_open(w, &text, 1, &f, &err), TM_EINVAL);
  assert_null(f);
  tm_ckpt_writer_free(w);
}

static tm_status body(void *ud) {
  tm_err err = {0};
  return save(ud, &err);
}

static void every_allocation_may_fail(void **state) {
  (void)state;
  char path[TM_PATH_MAX];
  sizes();
  assert_true(test_torture(body, in_dir(path, "memory")) > 5);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_was_streamed_is_read_like_any_checkpoint),
      cmocka_unit_test(pieces_that_were_not_announced_are_refused),
      cmocka_unit_test(every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
