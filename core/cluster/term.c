#include "cluster/term.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int tm_term_order(const tm_term *a, const tm_term *b) {
  if (a->number != b->number) return a->number < b->number ? -1 : 1;
  return a->chief == b->chief ? 0 : a->chief < b->chief ? -1 : 1;
}

tm_status tm_term_refuse(const char *task, const tm_term *asked, const tm_term *granted,
                         tm_err *err) {
  if (err && !err->task[0]) snprintf(err->task, sizeof err->task, "%s", task);
  return tm_fail(err, TM_EABORTED,
                 "another chief took over: %s is in term %" PRIu64
                 " of chief %016" PRIx64 ", this is term %" PRIu64
                 " of chief %016" PRIx64,
                 task, granted->number, granted->chief, asked->number, asked->chief);
}

void tm_term_pack(tm_packer *w, const tm_term *t) {
  tm_pack_array(w, 2);
  tm_pack_uint(w, t->number);
  tm_pack_uint(w, t->chief);
}

tm_status tm_term_unpack(const void *p, size_t n, tm_term *t, tm_err *err) {
  tm_unpacker r;
  tm_unpack_init(&r, p, n);
  tm_unpack_array(&r, 2, 2);
  t->number = tm_unpack_uint(&r);
  t->chief = tm_unpack_uint(&r);
  return tm_unpack_end(&r, err);
}

static tm_status term_ask(tm_channel *ch, tm_term *granted, tm_err *err) {
  tm_frame f = {.kind = TM_F_CLAIM, .id = 1};
  const uint8_t *meta;
  TM_TRY(tm_channel_send(ch, &f, NULL, NULL, 0, err));
  TM_TRY(tm_channel_head(ch, &f, &meta, err));
  if (f.kind != TM_F_GRANT)
    return tm_fail(err, TM_EDATALOSS, "%s does not answer a claim",
                   tm_channel_peer(ch)->task);
  TM_TRY(tm_term_unpack(meta, f.meta_bytes, granted, err));
  return tm_channel_end(ch, err);
}

tm_status tm_term_claim(const tm_channel_options *opt, tm_term *granted, tm_err *err) {
  tm_channel_options o = *opt;
  tm_channel *ch;
  snprintf(o.self.purpose, sizeof o.self.purpose, "control");
  TM_TRY(tm_channel_open(&o, &ch, err));
  tm_status s = term_ask(ch, granted, err);
  tm_channel_close(ch);
  return s;
}
