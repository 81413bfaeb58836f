/* Letters of the control plane as the fuzzers begin with them: seeds of an old form
 * would be refused at their first byte, and nothing behind it tried. */
#include "cluster/control.h"
#include "test.h"

static size_t seed(const char *name, uint8_t *p, size_t room) {
  char path[100];
  snprintf(path, sizeof path, "spec/fuzz/corpus/control/%s", name);
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  size_t n = fread(p, 1, room, f);
  fclose(f);
  assert_true(n > 0 && n < room);
  return n;
}

static void seeds_of_the_fuzzers_are_of_todays_form(void **state) {
  (void)state;
  static const char *const names[] = {"closure", "completion", "failed"};
  uint8_t p[1000];
  tm_err err = {0};
  for (int i = 0; i < 3; i++) {
    tm_message m = {.f = {.meta_bytes = (uint32_t)seed(names[i], p, sizeof p) / 2},
                    .meta = p};
    tm_letter_in in;
    tm_closure c = {0};
    tm_completion d = {0};
    uint64_t hash[2];
    assert_ok(tm_letter_open(&in, &m));
    if (i == 0)
      tm_closure_take(&in, &c, hash);
    else
      tm_completion_take(&in, &d);
    assert_ok_err(tm_letter_end(&in, &err), &err);
    assert_true(i > 0 || (c.narg == 2 && c.deal[1].count == 3));
    assert_int_equal(d.status, i == 2 ? TM_EINVAL : TM_OK);
    tm_closure_release(&c);
    tm_completion_release(&d);
    tm_letter_close(&in);
  }
  tm_start start;
  tm_var_info *v;
  assert_ok_err(tm_start_unpack(p, seed("start", p, sizeof p), &start, &err), &err);
  assert_int_equal(start.nps, 2);
  tm_start_release(&start);
  assert_ok_err(tm_var_info_unpack(p, seed("variable", p, sizeof p), &v, &err), &err);
  tm_var_info_unref(v);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(seeds_of_the_fuzzers_are_of_todays_form),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
