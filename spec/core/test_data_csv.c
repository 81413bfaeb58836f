/* csv: records, types, missing values, errors with their place, the Adult data. */
#include <math.h>

#include "datasets.h"

static char dir[256], path[512], path2[512];

static int make_dir(void **state) {
  (void)state;
  test_dir(dir, sizeof dir);
  return 0;
}

static int remove_dir(void **state) {
  (void)state;
  test_rmdir(dir);
  return 0;
}

/* Options for one file with this text. */
static tm_csv_options options(const char *text) {
  static const char *name = path;
  tm_csv_options o;
  test_file(dir, "f.csv", text, strlen(text), path, sizeof path);
  tm_csv_defaults(&o);
  o.files = &name;
  o.nfiles = 1;
  return o;
}

static tm_dataset *csv_of(const tm_csv_options *o) {
  tm_dataset *ds;
  tm_err err = {0};
  assert_ok_err(tm_data_csv(o, &ds, &err), &err);
  return ds;
}

static void assert_refused(const tm_csv_options *o, tm_status s, const char *word) {
  tm_dataset *ds;
  tm_err err = {0};
  tm_err_clear(&err);
  assert_int_equal(tm_data_csv(o, &ds, &err), s);
  assert_null(ds);
  if (!strstr(err.msg, word)) fail_msg("\"%s\" lacks \"%s\"", err.msg, word);
}

/* Fields of all records (of string columns) as a|b/c|d/. */
static void assert_text(const tm_csv_options *o, const char *want) {
  char got[1024];
  size_t n = 0;
  tm_dataset *ds = csv_of(o);
  int32_t width = tm_dataset_width(ds);
  tm_iter *it = iterate(ds, &test_env);
  tm_tensor *t[64];
  tm_err err = {0};
  tm_status s;
  while ((s = tm_iter_next(it, t, &err)) == TM_OK) {
    for (int32_t i = 0; i < width; i++) {
      const tm_str *x = t[i]->v.data;
      assert_int_equal(t[i]->v.dtype, TM_STRING);
      n += (size_t)snprintf(got + n, sizeof got - n, "%.*s%c", (int)x->n, x->p,
                            i + 1 < width ? '|' : '/');
      tm_tensor_unref(t[i]);
    }
  }
  if (s != TM_ERANGE) fail_msg("%s", err.msg);
  got[n] = 0;
  assert_string_equal(got, want);
  tm_iter_free(it);
  tm_dataset_unref(ds);
}

static const tm_csv_column ab[] = {{"a", TM_STRING, NULL}, {"b", TM_STRING, NULL}};

static tm_csv_options two_texts(const char *text) {
  tm_csv_options o = options(text);
  o.columns = ab;
  o.ncolumns = 2;
  return o;
}

static void fields_are_split_as_rfc_4180_says(void **state) {
  (void)state;
  const struct {
    const char *text, *want;
  } c[] = {
      {"1,2\n3,4\n", "1|2/3|4/"},
      {"1,2\r\n3,4", "1|2/3|4/"},
      {" x ,  y\t\n", "x|y/"},
      {"\"q\",\" b \"\n", "q| b /"},
      {"\"a,b\" , \"c\"\"d\"\n", "a,b|c\"d/"},
      {"\"two\nlines\",x\n1,2\n", "two\nlines|x/1|2/"},
      {"\"cr\r\nlf\n\n\",x\n", "cr\r\nlf\n\n|x/"},
      {"\"\"\"\",\"\"\n", "\"|/"},
      {",\n,x\n", "|/|x/"},
      {"\n\n1,2\n  \n\n", "1|2/"},
      {"", ""},
  };
  for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
    tm_csv_options o = two_texts(c[i].text);
    assert_text(&o, c[i].want);
  }
}

static void delimiters_quotes_and_comments_are_options(void **state) {
  (void)state;
  tm_csv_options o = two_texts("a\tb c\n x \t'y'\n");
  o.delimiter = '\t';
  o.quote = 0;
  assert_text(&o, "a|b c/x|'y'/");
  o.quote = '\'';
  assert_text(&o, "a|b c/x|y/");
  o = two_texts("# one\n1,2\n# two\n3,\"#\"\n");
  o.comment = "#";
  assert_text(&o, "1|2/3|#/");
  o = two_texts("odd first line\n\n1,2\n");
  o.skip = 2;
  assert_text(&o, "1|2/");
  o.skip = 50;
  assert_text(&o, "");
  o = two_texts("1;2\n");
  o.delimiter = '"';
  assert_refused(&o, TM_EINVAL, "delimiter");
}

static void types_come_from_the_rows(void **state) {
  (void)state;
  tm_csv_options o = options("1,1.5,x,?,,\n?,2,3,?,7,\n-3,nan,,?,,\n");
  o.na_value = "?";
  tm_dataset *ds = csv_of(&o);
  const tm_dtype want[] = {TM_I64, TM_F32, TM_STRING, TM_STRING, TM_I64, TM_STRING};
  assert_int_equal(tm_dataset_width(ds), 6);
  for (int i = 0; i < 6; i++) {
    assert_int_equal(tm_dataset_types(ds)[i].dtype, want[i]);
    assert_int_equal(tm_dataset_types(ds)[i].shape.rank, 0);
  }
  assert_string_equal(tm_dataset_name(ds, 0), "c1");
  assert_string_equal(tm_dataset_name(ds, 5), "c6");
  assert_null(tm_dataset_name(ds, 6));
  assert_int_equal(tm_dataset_cardinality(ds), TM_DATA_UNKNOWN);
  tm_dataset_unref(ds);
}

static void missing_fields_get_the_default(void **state) {
  (void)state;
  const tm_csv_column c[] = {{"a", TM_F32, NULL},    {"b", TM_I32, NULL},
                             {"c", TM_STRING, NULL}, {"d", TM_F64, "-1.5"},
                             {"e", TM_U8, "255"},    {"f", TM_STRING, "none"},
                             {"g", TM_BOOL, "true"}, {"h", TM_I64, "9"}};
  tm_csv_options o = options("?,,?,,?,,?,\"\"\n");
  o.columns = c;
  o.ncolumns = 8;
  o.na_value = "?";
  tm_dataset *ds = csv_of(&o);
  tm_iter *it = iterate(ds, &test_env);
  tm_tensor *t[8];
  assert_ok(tm_iter_next(it, t, NULL));
  assert_true(isnan(tm_view_get_f64(&t[0]->v, 0)));
  assert_int_equal(tm_view_get_i64(&t[1]->v, 0), 0);
  assert_true(str_is(t[2], 0, ""));
  assert_true(tm_view_get_f64(&t[3]->v, 0) == -1.5);
  assert_int_equal(tm_view_get_i64(&t[4]->v, 0), 255);
  assert_true(str_is(t[5], 0, "none"));
  assert_int_equal(tm_view_get_i64(&t[6]->v, 0), 1);
  assert_int_equal(tm_view_get_i64(&t[7]->v, 0), 9);
  for (int i = 0; i < 8; i++) tm_tensor_unref(t[i]);
  tm_iter_free(it);
  tm_dataset_unref(ds);
  const tm_csv_column bad = {"a", TM_U8, "256"};
  o.columns = &bad;
  o.ncolumns = 1;
  assert_refused(&o, TM_EINVAL, "\"256\" is no uint8");
}

static void a_header_names_and_picks_columns(void **state) {
  (void)state;
  tm_csv_options o = options("z, y ,\"x\"\n1,2,3\n");
  o.header = true;
  o.label = "y";
  tm_dataset *ds = csv_of(&o);
  assert_string_equal(tm_dataset_name(ds, 0), "x"); /* by name, the label last */
  assert_string_equal(tm_dataset_name(ds, 1), "z");
  assert_string_equal(tm_dataset_name(ds, 2), "y");
  assert_values(ds, 3, 1, 2);
  CHAIN(ds, tm_data_batch, 2, false);
  assert_string_equal(tm_dataset_name(ds, 2), "y");
  tm_dataset_unref(ds);
  const tm_csv_column some[] = {{"z", TM_F32, NULL}, {"x", TM_DTYPE_NONE, NULL}};
  o.label = NULL;
  o.columns = some;
  o.ncolumns = 2;
  ds = csv_of(&o);
  assert_int_equal(tm_dataset_width(ds), 2);
  assert_int_equal(tm_dataset_types(ds)[0].dtype, TM_I64);
  assert_int_equal(tm_dataset_types(ds)[1].dtype, TM_F32);
  assert_values(ds, 3, 1);
  tm_dataset_unref(ds);
  const tm_csv_column no = {"w", TM_F32, NULL};
  o.columns = &no;
  o.ncolumns = 1;
  assert_refused(&o, TM_EINVAL, "no column \"w\"");
  o.ncolumns = 0;
  o.label = "v";
  assert_refused(&o, TM_EINVAL, "no column \"v\"");
  o = options("a,a\n1,2\n");
  o.header = true;
  assert_refused(&o, TM_EINVAL, "two columns are called \"a\"");
  o = options("");
  o.header = true;
  assert_refused(&o, TM_EINVAL, "no header");
  o.header = false;
  assert_refused(&o, TM_EINVAL, "empty");
}

static void files_follow_each_other_and_share_a_header(void **state) {
  (void)state;
  tm_csv_options o = options("a,b\n1,2\n");
  test_file(dir, "g.csv", "a,b\n3,4\n", 8, path2, sizeof path2);
  const char *both[] = {path, path2};
  o.files = both;
  o.nfiles = 2;
  o.header = true;
  tm_dataset *ds = csv_of(&o);
  assert_values(ds, 1, 2, 3, 4);
  tm_iter *it = iterate(ds, &test_env);
  test_file(dir, "g.csv", "b,a\n3,4\n", 8, path2, sizeof path2);
  tm_tensor *t[2];
  assert_ok(tm_iter_next(it, t, NULL));
  tm_tensor_unref(t[0]);
  tm_tensor_unref(t[1]);
  assert_next_fails(it, TM_EINVAL, "column 1 of the header is \"b\"", "g.csv");
  tm_iter_free(it);
  tm_dataset_unref(ds);
}

static void a_bad_row_is_named_and_passed_over(void **state) {
  (void)state;
  const struct {
    const char *row, *word, *other;
  } bad[] = {
      {"1", "line 3: 1 columns instead of 2", "f.csv"},
      {"1,2,3", "line 3: 3 columns instead of 2", "f.csv"},
      {"1,x", "line 3, column 2 (\"b\"): \"x\" is no int64", "na_value"},
      {"1,2.5", "\"2.5\" is no int64", "line 3"},
      {"\"1\"x,2", "line 3, column 1: text after the closing quote", "f.csv"},
      {"1,2\"2", "line 3, column 2: a quote inside", "f.csv"},
  };
  const tm_csv_column c[] = {{"a", TM_I64, NULL}, {"b", TM_I64, NULL}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    char text[128];
    snprintf(text, sizeof text, "1,2\n\n%s\n3,4\n", bad[i].row);
    tm_csv_options o = options(text);
    o.columns = c;
    o.ncolumns = 2;
    tm_dataset *ds = csv_of(&o);
    tm_iter *it = iterate(ds, &test_env);
    tm_tensor *t[2];
    int64_t rest[4];
    assert_ok(tm_iter_next(it, t, NULL));
    tm_tensor_unref(t[0]);
    tm_tensor_unref(t[1]);
    assert_next_fails(it, TM_EINVAL, bad[i].word, bad[i].other);
    assert_int_equal(drain(it, rest, 4), 2);
    assert_int_equal(rest[0], 3);
    tm_iter_free(it);
    tm_dataset_unref(ds);
  }
}

static void an_open_quote_is_told_at_its_line(void **state) {
  (void)state;
  tm_csv_options o = two_texts("1,2\n3,\"4\n5,6\n");
  tm_dataset *ds = csv_of(&o);
  tm_iter *it = iterate(ds, &test_env);
  tm_tensor *t[2];
  assert_ok(tm_iter_next(it, t, NULL));
  tm_tensor_unref(t[0]);
  tm_tensor_unref(t[1]);
  assert_next_fails(it, TM_EINVAL, "line 2, column 2", "not closed");
  assert_next_fails(it, TM_ERANGE, "ended", "");
  tm_iter_free(it);
  tm_dataset_unref(ds);
}

static void missing_files_are_told_when_the_source_is_made(void **state) {
  (void)state;
  tm_csv_options o = two_texts("1,2\n");
  const char *none = "/nowhere/none.csv";
  o.files = &none;
  assert_refused(&o, TM_ENOTFOUND, none);
  o.check = false; /* ... or when it is read */
  tm_dataset *ds = csv_of(&o);
  tm_iter *it = iterate(ds, &test_env);
  assert_next_fails(it, TM_ENOTFOUND, none, "");
  tm_iter_free(it);
  tm_dataset_unref(ds);
  o.ncolumns = 0;
  assert_refused(&o, TM_EINVAL, "check = false");
}

static tm_status make_and_read(void *ud) {
  tm_dataset *ds = NULL;
  tm_iter *it = NULL;
  tm_tensor *t[8];
  tm_status s = tm_data_csv(ud, &ds, NULL);
  if (s == TM_OK) s = tm_dataset_iterate(ds, &test_env, &it, NULL);
  while (s == TM_OK) {
    s = tm_iter_next(it, t, NULL);
    for (int32_t i = 0; s == TM_OK && i < tm_dataset_width(ds); i++)
      tm_tensor_unref(t[i]);
  }
  tm_iter_free(it);
  tm_dataset_unref(ds);
  return s == TM_ERANGE ? TM_OK : s;
}

static void every_allocation_may_fail(void **state) {
  (void)state;
  const tm_csv_column c[] = {{"a", TM_I64, "4"}, {"b", TM_STRING, NULL}};
  tm_csv_options o = options("x,b,a\n1,\"q\"\"r\",?\n1,2,3\n");
  o.header = true;
  o.columns = c;
  o.ncolumns = 2;
  o.na_value = "?";
  o.label = "b";
  assert_true(test_torture(make_and_read, &o) > 20);
}

/* The census data: 14 columns and the label, as examples/adult.lua reads them. */
static tm_dataset *adult(const char *file) {
  static char where[512];
  static const char *name = where;
  static const char *const columns[] = {"age",
                                        "workclass",
                                        "fnlwgt",
                                        "education",
                                        "education_num",
                                        "marital_status",
                                        "occupation",
                                        "relationship",
                                        "race",
                                        "sex",
                                        "capital_gain",
                                        "capital_loss",
                                        "hours_per_week",
                                        "native_country",
                                        "income"};
  tm_csv_column c[15];
  if (!shipped(file, where, sizeof where)) return NULL;
  for (int i = 0; i < 15; i++) c[i] = (tm_csv_column){columns[i], TM_DTYPE_NONE, NULL};
  tm_csv_options o;
  tm_csv_defaults(&o);
  o.files = &name;
  o.nfiles = 1;
  o.columns = c;
  o.ncolumns = 15;
  o.label = "income";
  o.na_value = "?";
  o.comment = "|";
  return csv_of(&o);
}

static void count_adult(const char *file, const char *yes, int64_t want_rows,
                        int64_t want_yes, int64_t want_missing) {
  tm_dataset *ds = adult(file);
  if (!ds) skip();
  int64_t rows = 0, positive = 0, missing = 0, n = tm_dataset_width(ds);
  assert_int_equal(n, 15);
  assert_string_equal(tm_dataset_name(ds, 0), "age");
  assert_string_equal(tm_dataset_name(ds, 14), "income");
  CHAIN(ds, tm_data_shuffle, 1000, false, 0, true);
  CHAIN(ds, tm_data_batch, 256, false);
  tm_iter *it = iterate(ds, &test_env);
  tm_tensor *t[15];
  tm_err err = {0};
  tm_status s;
  while ((s = tm_iter_next(it, t, &err)) == TM_OK) {
    int64_t k = t[0]->v.shape.dim[0];
    assert_int_equal(t[0]->v.dtype, TM_I64);
    for (int64_t i = 0; i < k; i++) {
      bool hole = false;
      for (int32_t c = 0; c < 14; c++)
        hole = hole || (t[c]->v.dtype == TM_STRING && str_is(t[c], i, ""));
      missing += hole;
      positive += str_is(t[14], i, yes);
    }
    rows += k;
    for (int c = 0; c < 15; c++) tm_tensor_unref(t[c]);
  }
  if (s != TM_ERANGE) fail_msg("%s", err.msg);
  assert_int_equal(rows, want_rows);
  assert_int_equal(positive, want_yes);
  assert_int_equal(missing, want_missing);
  tm_iter_free(it);
  tm_dataset_unref(ds);
}

static void the_census_training_data_are_whole(void **state) {
  (void)state;
  count_adult("adult/adult.data.gz", ">50K", 32561, 7841, 2399);
}

static void the_census_test_data_are_whole(void **state) {
  (void)state;
  count_adult("adult/adult.test.gz", ">50K.", 16281, 3846, 1221);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(fields_are_split_as_rfc_4180_says),
      cmocka_unit_test(delimiters_quotes_and_comments_are_options),
      cmocka_unit_test(types_come_from_the_rows),
      cmocka_unit_test(missing_fields_get_the_default),
      cmocka_unit_test(a_header_names_and_picks_columns),
      cmocka_unit_test(files_follow_each_other_and_share_a_header),
      cmocka_unit_test(a_bad_row_is_named_and_passed_over),
      cmocka_unit_test(an_open_quote_is_told_at_its_line),
      cmocka_unit_test(missing_files_are_told_when_the_source_is_made),
      cmocka_unit_test(every_allocation_may_fail),
      cmocka_unit_test(the_census_training_data_are_whole),
      cmocka_unit_test(the_census_test_data_are_whole),
  };
  return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
