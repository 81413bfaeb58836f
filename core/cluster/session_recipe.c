#include "cluster/session_recipe.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* Design.  A list that is pruned when it would grow, so its length follows the number
 * of variables that live. */

static void recipe_release(session_recipe *r) {
  for (int32_t k = 0; r->piece && k < r->info->nshard; k++)
    tm_tensor_unref(r->piece[k]);
  tm_free(r->piece, (size_t)r->info->nshard * sizeof *r->piece);
  tm_tensor_unref(r->init.value);
  tm_var_info_unref(r->info);
}

static uint64_t recipe_bytes(const tm_var_info *info, const tm_init *init,
                             tm_tensor *const *piece) {
  uint64_t n = 0;
  for (int32_t k = 0; piece && k < info->nshard; k++) n += tm_view_bytes(&piece[k]->v);
  if (!piece && init->value) n = tm_view_bytes(&init->value->v);
  return n;
}

static tm_status recipe_make(session_recipe *r, tm_var_info *info, const tm_init *init,
                             tm_tensor *const *piece) {
  memset(r, 0, sizeof *r);
  if (recipe_bytes(info, init, piece) > TM_RECIPE_BYTES && info->dtype != TM_STRING) {
    snprintf(r->init.kind, sizeof r->init.kind, "zeros");
    r->lossy = true;
  } else if (piece) {
    r->piece = tm_calloc((size_t)info->nshard, sizeof *r->piece);
    if (!r->piece) return TM_ENOMEM;
    for (int32_t k = 0; k < info->nshard; k++) r->piece[k] = tm_tensor_ref(piece[k]);
  } else {
    r->init = *init;
    if (r->init.value) tm_tensor_ref(r->init.value);
  }
  r->info = tm_var_info_ref(info);
  return TM_OK;
}

void tm_recipes_prune(session_recipes *rs, tm_catalog *catalog) {
  size_t kept = 0;
  for (size_t i = 0; i < rs->n; i++) {
    tm_var_info *v = tm_catalog_get(catalog, rs->r[i].info->uid);
    if (v)
      rs->r[kept++] = rs->r[i];
    else
      recipe_release(&rs->r[i]);
    tm_var_info_unref(v);
  }
  rs->n = kept;
}

static tm_status recipes_room(session_recipes *rs, tm_catalog *catalog) {
  if (rs->n < rs->cap) return TM_OK;
  tm_recipes_prune(rs, catalog);
  if (rs->n < rs->cap - rs->cap / 4) return TM_OK;
  size_t cap = rs->cap ? rs->cap * 2 : 16;
  session_recipe *r = tm_realloc(rs->r, rs->cap * sizeof *r, cap * sizeof *r);
  if (!r) return TM_ENOMEM;
  rs->r = r;
  rs->cap = cap;
  return TM_OK;
}

tm_status tm_recipes_add(session_recipes *rs, tm_catalog *catalog, tm_var_info *info,
                         const tm_init *init, tm_tensor *const *piece) {
  TM_TRY(recipes_room(rs, catalog));
  TM_TRY(recipe_make(&rs->r[rs->n], info, init, piece));
  rs->n++;
  return TM_OK;
}

void tm_recipes_release(session_recipes *rs) {
  for (size_t i = 0; i < rs->n; i++) recipe_release(&rs->r[i]);
  tm_free(rs->r, rs->cap * sizeof *rs->r);
  memset(rs, 0, sizeof *rs);
}
