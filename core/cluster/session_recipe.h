/*
 * session_recipe.h - how each variable of a session was made, so that it can be made
 * again on a ps that begins anew.
 *
 * Initializers are kept by name; values up to TM_RECIPE_BYTES are kept, larger ones
 * become zeros (`lossy`): a checkpoint has to bring them.
 *
 * Ownership: the session's.  Threads: the host's.
 */
#ifndef TM_CLUSTER_SESSION_RECIPE_H
#define TM_CLUSTER_SESSION_RECIPE_H

#include "cluster/vars.h"

enum { TM_RECIPE_BYTES = 1 << 20 };

typedef struct session_recipe {
  tm_var_info *info;
  tm_init init;      /* init.value is held */
  tm_tensor **piece; /* info->nshard of them, held; NULL: init */
  bool lossy;
} session_recipe;

typedef struct session_recipes {
  session_recipe *r; /* in order of making */
  size_t n, cap;
} session_recipes;

/* Note a variable that was just made. */
TM_CHECKED tm_status tm_recipes_add(session_recipes *rs, tm_catalog *catalog,
                                    tm_var_info *info, const tm_init *init,
                                    tm_tensor *const *piece);
/* Forget those that are not in the catalogue any more. */
void tm_recipes_prune(session_recipes *rs, tm_catalog *catalog);
void tm_recipes_release(session_recipes *rs);

#endif
