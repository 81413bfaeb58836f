/* Heads, hellos, errors, addresses, from any bytes. */
#include <string.h>

#include "net/addr.h"
#include "net/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
  tm_err err = {0};
  tm_hello hello;
  tm_addr addr;
  tm_frame f;
  char text[300] = "";
  if (n >= TM_FRAME_HEAD) {
    uint8_t head[TM_FRAME_HEAD], again[TM_FRAME_HEAD];
    memcpy(head, p, sizeof head);
    if (tm_frame_unpack(head, UINT64_MAX, &f, &err) == TM_OK) {
      tm_frame_pack(&f, again);
      if (memcmp(head, again, 32) != 0) __builtin_trap();
    }
  }
  if (tm_hello_unpack(p, n, &hello, &err) == TM_OK && !memchr(hello.task, 0, 48))
    __builtin_trap();
  tm_unpacker r;
  tm_unpack_init(&r, p, n);
  tm_err_unpack(&r, &err);
  if (err.code == TM_OK) __builtin_trap();
  memcpy(text, p, n < sizeof text - 1 ? n : sizeof text - 1);
  if (tm_addr_parse(text, true, &addr, &err) == TM_OK && !addr.host[0])
    __builtin_trap();
  return 0;
}
