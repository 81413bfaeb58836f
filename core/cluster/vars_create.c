#include <string.h>

#include "base/mem.h"
#include "cluster/vars.h"

/*
 * Design.  A variable is made shard by shard, one message a ps with all of its shards.
 * The catalogue gets the entry last, so a half-made variable is never looked up; what
 * was made before a failure is dropped again.
 */
static tm_ps_client *create_client(tm_vars *v, int32_t ps) {
  return ps < 0 ? v->local : (ps < v->nps ? v->ps[ps] : NULL);
}

static void create_spec(const tm_var_info *info, int32_t k, const tm_init *init,
                        tm_shard_spec *sp) {
  memset(sp, 0, sizeof *sp);
  sp->uid = info->uid;
  sp->shard = (uint32_t)k;
  sp->dtype = info->dtype;
  sp->full_shape = info->shape;
  sp->shape = info->shape;
  if (info->nshard > 1) sp->shape.dim[0] = info->shard[k].rows;
  sp->row_offset = info->shard[k].offset;
  sp->user = info->user;
  sp->init = *init;
}

static void create_undo(tm_vars *v, const tm_var_info *info, int32_t made) {
  for (int32_t k = 0; k < made; k++) {
    tm_ps_client *c = create_client(v, info->shard[k].ps);
    tm_err ignore = {0};
    if (c && c->drop(c, info->uid, (uint32_t)k, &ignore)) continue; /* best effort */
  }
}

static tm_status create_shard(tm_vars *v, const tm_var_info *info, int32_t k,
                              const tm_init *init, tm_tensor *value, tm_err *err) {
  tm_shard_spec sp;
  tm_ps_client *c = create_client(v, info->shard[k].ps);
  if (!c)
    return tm_fail(err, TM_EUNAVAILABLE, "%s: ps %d is not connected", info->name,
                   info->shard[k].ps);
  create_spec(info, k, init, &sp);
  if (value) sp.init.value = value;
  return c->create(c, &sp, 1, err);
}

static tm_status create_all(tm_vars *v, tm_var_info *info, const tm_init *init,
                            tm_tensor *const *piece, tm_err *err) {
  tm_status s = TM_OK;
  int32_t k = 0;
  if (v->guard) TM_TRY(v->guard(v->session, err));
  for (; k < info->nshard; k++) {
    s = create_shard(v, info, k, init, piece ? piece[k] : NULL, err);
    if (s) break;
  }
  if (s == TM_OK) s = tm_catalog_add(v->catalog, info);
  if (s) create_undo(v, info, k);
  return s;
}

tm_status tm_vars_create_pieces(tm_vars *v, tm_var_info *info, tm_tensor *const *piece,
                                tm_err *err) {
  tm_init init = {.kind = "value"};
  for (int32_t k = 0; k < info->nshard; k++) {
    tm_shape want = info->shape;
    if (info->nshard > 1) want.dim[0] = info->shard[k].rows;
    if (piece[k]->v.dtype == info->dtype && tm_shape_equal(&piece[k]->v.shape, &want))
      continue;
    char a[96], b[96];
    return tm_fail(err, TM_EINVAL, "%s: initial value of shard %d is %s %s, not %s %s",
                   info->name, k, tm_dtype_name(piece[k]->v.dtype),
                   tm_shape_text(&piece[k]->v.shape, a, sizeof a),
                   tm_dtype_name(info->dtype), tm_shape_text(&want, b, sizeof b));
  }
  return create_all(v, info, &init, piece, err);
}

tm_status tm_vars_create(tm_vars *v, tm_var_info *info, const tm_init *init,
                         tm_err *err) {
  if (strcmp(init->kind, "value") != 0) return create_all(v, info, init, NULL, err);
  size_t bytes = (size_t)info->nshard * sizeof(tm_tensor *);
  tm_tensor **piece = tm_calloc((size_t)info->nshard, sizeof(tm_tensor *));
  if (!piece) return tm_nomem(err, "pieces of a variable");
  tm_status s = TM_OK;
  for (int32_t k = 0; k < info->nshard && s == TM_OK; k++) {
    if (info->nshard == 1) {
      piece[k] = tm_tensor_ref(init->value);
    } else {
      s = tm_tensor_rows(init->value, info->shard[k].offset, info->shard[k].rows,
                         &piece[k], err);
    }
  }
  if (s == TM_OK) s = tm_vars_create_pieces(v, info, piece, err);
  for (int32_t k = 0; k < info->nshard; k++) tm_tensor_unref(piece[k]);
  tm_free(piece, bytes);
  return s;
}

/* The value of shard k of a variable that began with init.value. */
static tm_status create_slice(const tm_var_info *info, int32_t k, const tm_init *init,
                              tm_tensor **out, tm_err *err) {
  *out = NULL;
  if (strcmp(init->kind, "value") != 0) return TM_OK;
  if (info->nshard > 1)
    return tm_tensor_rows(init->value, info->shard[k].offset, info->shard[k].rows, out,
                          err);
  *out = tm_tensor_ref(init->value);
  return TM_OK;
}

tm_status tm_vars_remake(tm_vars *v, tm_var_info *info, const tm_init *init,
                         tm_tensor *const *piece, const bool *lane, tm_err *err) {
  static const tm_init by_value = {.kind = "value"};
  for (int32_t k = 0; k < info->nshard; k++) {
    if (info->shard[k].ps < 0 || !lane[info->shard[k].ps]) continue;
    tm_tensor *value = NULL;
    if (piece)
      value = tm_tensor_ref(piece[k]);
    else
      TM_TRY(create_slice(info, k, init, &value, err));
    tm_status s = create_shard(v, info, k, piece ? &by_value : init, value, err);
    tm_tensor_unref(value);
    TM_TRY(s);
  }
  return TM_OK;
}

tm_status tm_vars_drop(tm_vars *v, uint64_t uid, tm_err *err) {
  tm_var_info *info = tm_catalog_get(v->catalog, uid);
  if (!info) return TM_OK;
  tm_catalog_del(v->catalog, uid);
  tm_status s = TM_OK;
  for (int32_t k = 0; k < info->nshard; k++) {
    tm_ps_client *c = create_client(v, info->shard[k].ps);
    tm_status one = c ? c->drop(c, uid, (uint32_t)k, err) : TM_OK;
    if (s == TM_OK) s = one;
  }
  tm_var_info_unref(info);
  return s;
}
