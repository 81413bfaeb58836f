/*
 * addr.h - "host:port", and sockets to and at such addresses.
 *
 * A listening task listens on TCP and, under a name made of the port, on a Unix socket
 * in the abstract namespace, which belongs to the same network namespace as the port.
 * Who connects to an address of this very host tries the Unix socket first.
 *
 * Threads: any.  Names are resolved by the C library and may block.
 */
#ifndef TM_NET_ADDR_H
#define TM_NET_ADDR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cancel.h"
#include "base/status.h"

typedef struct tm_addr {
  char host[256]; /* without brackets */
  uint16_t port;
} tm_addr;

/* "host:port", "1.2.3.4:5", "[::1]:5".  Port 0 only where `listening`. */
TM_CHECKED tm_status tm_addr_parse(const char *text, bool listening, tm_addr *out,
                                   tm_err *err);

/* A connected, non-blocking socket.  use_unix: try that first where the host is this
 * one.  *is_unix and cancel (ends the waiting) may be NULL.  TM_EUNAVAILABLE names the
 * address. */
TM_CHECKED tm_status tm_addr_connect(const char *text, bool use_unix,
                                     int64_t timeout_ns, tm_cancel *cancel, int *fd,
                                     bool *is_unix, tm_err *err);

/* Listening, non-blocking sockets.  *port is the real one; *ufd is -1 where Unix
 * sockets are of no use. */
TM_CHECKED tm_status tm_addr_listen(const char *text, int *tfd, int *ufd,
                                    uint16_t *port, tm_err *err);

/* A port of 127.0.0.1 that nobody uses now, and hardly anybody will until a task
 * listens there; 0: none was found. */
uint16_t tm_addr_unused_port(void);

/* Non-blocking, closed on exec, no delay for TCP. */
TM_CHECKED tm_status tm_addr_prepare(int fd, bool is_unix);

#endif
