#include "host/evaluator.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/spec.h"
#include "host/script.h"

/*
 * Design.  The role is told as all roles are, by TM_CONFIG: what the environment says
 * of the cluster stays, the task becomes an evaluator where none is named.
 */
enum { EVALUATOR_MAX = 1 << 17 };

bool tm_host_is_evaluator(void) {
  tm_cluster_spec *spec = NULL;
  tm_err err;
  bool yes = tm_cluster_spec_env(&spec, &err) == TM_OK && spec && spec->has_task &&
             strcmp(spec->task_type, "evaluator") == 0;
  tm_cluster_spec_free(spec);
  return yes;
}

static const char *evaluator_text(void) {
  const char *text = getenv("TM_CONFIG");
  if (!text || !*text) text = getenv("TF_CONFIG");
  return text && *text ? text : "{}";
}

/* root with an evaluator as its task, as TM_CONFIG. */
static int evaluator_set(json_t *root, bool has_task) {
  static char text[EVALUATOR_MAX];
  if (!has_task &&
      json_object_set_new(root, "task",
                          json_pack("{s:s, s:i}", "type", "evaluator", "index", 0)))
    return -1;
  if (!json_object_get(root, "cluster") &&
      json_object_set_new(root, "cluster", json_object()))
    return -1;
  size_t n = json_dumpb(root, text, sizeof text - 1, JSON_COMPACT);
  if (n == 0 || n >= sizeof text) return -1;
  text[n] = '\0';
  return setenv("TM_CONFIG", text, 1);
}

/* The configuration with the task set; 0, or what is wrong was said. */
static int evaluator_config(void) {
  json_error_t why;
  const char *text = evaluator_text();
  json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &why);
  json_t *task = json_object_get(root, "task");
  const char *type = json_string_value(json_object_get(task, "type"));
  if (type && strcmp(type, "evaluator") != 0) {
    fprintf(stderr, "tidemill: evaluator: the configuration says this task is a %s\n",
            type);
    json_decref(root);
    return 1;
  }
  /* What is no object the script will be told of. */
  int bad = json_is_object(root) ? evaluator_set(root, type != NULL) : 0;
  json_decref(root);
  if (bad) fprintf(stderr, "tidemill: evaluator: the configuration is too long\n");
  return bad ? 1 : 0;
}

static int evaluator_usage(FILE *to) {
  fputs(
      "usage: tidemill evaluator script.lua [args]\n"
      "Runs the script as an evaluator: tm.distribute.resolver{...}.task_type is\n"
      "\"evaluator\" there.  The script follows the checkpoints of a training, with\n"
      "tm.distribute.SidecarEvaluator{...}:start() for instance; it has no part in\n"
      "the training cluster.\n",
      to);
  return to == stderr ? 2 : 0;
}

int tm_host_evaluator(int argc, char **argv) {
  if (argc < 2) return evaluator_usage(stderr);
  if (strcmp(argv[1], "--help") == 0) return evaluator_usage(stdout);
  int status = evaluator_config();
  return status ? status : tm_host_script(argc, argv);
}
