/* Any allocation may fail on either side of a connection. */
#include "base/clock.h"
#include "net/addr.h"
#include "net/loop.h"
#include "test.h"

enum { PAYLOAD = 6400, TURNS = 3 };
#define LIMIT_NS 2000000000

static void echo_release(void *ud) { tm_free_aligned(ud, PAYLOAD); }

/* What cannot be answered ends the connection, or the client would wait. */
static void echo_message(void *ud, tm_conn *c, tm_message *m) {
  (void)ud;
  tm_buf meta = {(uint8_t *)(uintptr_t)m->meta, m->f.meta_bytes, m->f.meta_bytes, 0};
  tm_segment seg = {m->payload, m->f.payload_bytes};
  void *taken = m->payload;
  m->payload = NULL;
  tm_status s = tm_conn_send(c, &m->f, &meta, &seg, 1, echo_release, taken);
  if (s) tm_conn_close(c, s, "no answer");
}

static void echo_closed(void *ud, tm_conn *c, const tm_err *why) {
  (void)ud;
  (void)c;
  (void)why;
}

static tm_status client_ask(tm_channel *ch, const uint8_t *bytes, uint8_t *back) {
  tm_buf meta = {(uint8_t *)"meta", 4, 4, 0};
  tm_segment seg = {bytes, PAYLOAD};
  const uint8_t *m;
  tm_frame f = {.kind = 100, .id = 1}, g;
  tm_err err = {0};
  TM_TRY(tm_channel_send(ch, &f, &meta, &seg, 1, &err));
  TM_TRY(tm_channel_head(ch, &g, &m, &err));
  TM_TRY(tm_channel_take(ch, back, PAYLOAD, &err));
  return tm_channel_end(ch, &err);
}

static tm_status client(uint16_t port, bool no_unix, uint8_t *bytes) {
  static uint8_t back[PAYLOAD];
  char address[64];
  tm_err err = {0};
  tm_channel *ch;
  snprintf(address, sizeof address, "127.0.0.1:%u", (unsigned)port);
  tm_channel_options o = {.address = address,
                          .expect_task = "/job:ps/task:0",
                          .self = {"c", "/job:worker/task:0", "data", 2},
                          .connect_timeout_ns = LIMIT_NS,
                          .silence_ns = LIMIT_NS,
                          .spin_ns = 0,
                          .no_unix = no_unix};
  TM_TRY(tm_channel_open(&o, &ch, &err));
  tm_status s = TM_OK;
  for (int i = 0; i < TURNS && !s; i++) {
    memset(bytes, i, PAYLOAD);
    s = client_ask(ch, bytes, back);
    if (!s && memcmp(bytes, back, PAYLOAD)) s = TM_EDATALOSS;
  }
  tm_channel_close(ch);
  return s;
}

static tm_status talk(bool no_unix) {
  static uint8_t bytes[PAYLOAD];
  tm_netloop *loop;
  uint16_t port;
  tm_err err = {0};
  TM_TRY(tm_netloop_new(1, &loop));
  tm_listen_options o = {.address = "127.0.0.1:0",
                         .self = {"c", "/job:ps/task:0", "", 1},
                         .data = {1u << 20, 0, LIMIT_NS},
                         .control = {1u << 20, 0, LIMIT_NS},
                         .events = {NULL, echo_message, echo_closed, NULL}};
  tm_status s = tm_netloop_listen(loop, &o, &port, &err);
  if (!s) s = client(port, no_unix, bytes);
  tm_netloop_free(loop);
  return s;
}

static void torture(bool no_unix, bool once) {
  assert_ok(talk(no_unix));
  int64_t live = tm_mem_live();
  int whole = 0;
  long n = 0;
  for (; whole < 3; n++) {
    struct test_budget budget = {.left = n, .once = once};
    int64_t t = tm_now_ns();
    tm_mem_hook(test_flaky, &budget);
    tm_status s = talk(no_unix);
    tm_mem_hook(NULL, NULL);
    if (tm_mem_live() != live)
      fail_msg("%ld bytes left when allocation %ld fails", (long)(tm_mem_live() - live),
               n + 1);
    /* The side without memory hangs up; the other sees that it is gone. */
    if (s != TM_OK && s != TM_ENOMEM && s != TM_EUNAVAILABLE)
      fail_msg("status %s when allocation %ld fails", tm_status_name(s), n + 1);
    if (tm_now_ns() - t > LIMIT_NS)
      fail_msg("silence when allocation %ld fails", n + 1);
    whole += atomic_load(&budget.left) > 0;
    assert_true(n < 5000);
  }
  assert_true(n > 10);
}

static void memory_may_run_out_at_any_time(void **state) {
  (void)state;
  torture(false, false);
  torture(true, false);
}

static void one_allocation_may_fail_at_any_time(void **state) {
  (void)state;
  torture(false, true);
  torture(true, true);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(memory_may_run_out_at_any_time),
      cmocka_unit_test(one_allocation_may_fail_at_any_time),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
