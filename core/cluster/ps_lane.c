#include "cluster/ps_lane.h"

#include "base/clock.h"
#include "base/mem.h"
#include "cluster/ps_saver.h"

static tm_status lane_put(void *ud, const tm_ps_place *p, const tm_view *rows,
                          tm_err *err) {
  return tm_store_put(((tm_ps_lane *)ud)->store, p, rows, err);
}

tm_status tm_ps_lane_new(const char *task, int32_t index, bool ordered, uint64_t run,
                         tm_ps_lane **out) {
  *out = NULL;
  tm_ps_lane *l = tm_calloc(1, sizeof *l);
  if (!l) return TM_ENOMEM;
  if (tm_store_new(task, &l->store) || tm_ps_loader_new(lane_put, l, &l->loader) ||
      tm_ps_saver_new(&l->saver)) {
    tm_ps_loader_free(l->loader);
    tm_store_free(l->store);
    tm_free(l, sizeof *l);
    return TM_ENOMEM;
  }
  atomic_init(&l->refs, 1);
  atomic_init(&l->role, run ? TM_LANE_BACKUP : TM_LANE_PRIMARY);
  atomic_init(&l->replicated, false);
  l->ordered = ordered;
  pthread_mutex_init(&l->order, NULL);
  l->index = index;
  l->run = run ? run : tm_random_id();
  *out = l;
  return TM_OK;
}

tm_ps_lane *tm_ps_lane_ref(tm_ps_lane *l) {
  atomic_fetch_add(&l->refs, 1);
  return l;
}

void tm_ps_lane_unref(tm_ps_lane *l) {
  if (!l || atomic_fetch_sub(&l->refs, 1) != 1) return;
  tm_ps_loader_free(l->loader);
  tm_ps_saver_free(l->saver);
  tm_store_free(l->store);
  pthread_mutex_destroy(&l->order);
  tm_free(l, sizeof *l);
}
