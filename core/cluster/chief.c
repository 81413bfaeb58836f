#include <string.h>

#include "base/mem.h"
#include "cluster/session.h"

struct tm_chief {
  tm_store *store;
  tm_catalog *catalog;
  tm_resources *resources;
  tm_vars *vars;
  uint64_t next_uid;
};

tm_status tm_chief_new(tm_chief **out, tm_err *err) {
  tm_ps_client *local = NULL;
  tm_chief *c = *out = tm_calloc(1, sizeof *c);
  if (!c) return tm_nomem(err, "the chief");
  c->next_uid = 1;
  if (tm_store_new("/job:chief/task:0", &c->store) || tm_catalog_new(&c->catalog) ||
      tm_resources_new(&c->resources) || tm_ps_client_local(c->store, &local))
    goto fail;
  if (tm_vars_new(c->catalog, NULL, 0, local, &c->vars)) goto fail;
  c->vars->resources = c->resources;
  return TM_OK;

fail:
  if (local) local->close(local);
  tm_chief_free(c);
  *out = NULL;
  return tm_nomem(err, "the chief");
}

void tm_chief_free(tm_chief *c) {
  if (!c) return;
  tm_vars_free(c->vars);
  tm_resources_free(c->resources);
  tm_catalog_unref(c->catalog);
  tm_store_free(c->store);
  tm_free(c, sizeof *c);
}

tm_vars *tm_chief_vars(tm_chief *c) { return c->vars; }
tm_resources *tm_chief_resources(tm_chief *c) { return c->resources; }
uint64_t tm_chief_next_uid(tm_chief *c) { return c->next_uid++; }
