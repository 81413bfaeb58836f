#include "net/addr.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"

/*
 * Design.  Whether an address is this host's is asked of the kernel: a datagram socket
 * that is connected to it gets the same address for itself.  No packet is sent.
 *
 * A port that is given away for later use is not bound meanwhile.  So it lies below
 * those that the kernel takes for connections, is another one at each call, and
 * processes begin far from each other.
 */
enum {
  ADDR_UNIX_ROOM = 512 << 10, /* fewer turns between the ends of a large frame */
  ADDR_LOW = 10240,           /* the lowest port that is given away, */
  ADDR_PORTS = 64             /* and how many each process has to itself, mostly */
};

static tm_status addr_malformed(const char *text, tm_err *err) {
  return tm_fail(
      err, TM_EINVAL,
      "address \"%.200s\" is not host:port (an IPv6 host stands in brackets, "
      "ports are 1 to 65535)",
      text);
}

static bool addr_port(const char *s, bool listening, uint16_t *port) {
  uint32_t v = 0;
  if (!*s || strlen(s) > 5) return false;
  for (; *s; s++) {
    if (*s < '0' || *s > '9') return false;
    v = v * 10 + (uint32_t)(*s - '0');
  }
  *port = (uint16_t)v;
  return v <= 65535 && (v > 0 || listening);
}

tm_status tm_addr_parse(const char *text, bool listening, tm_addr *out, tm_err *err) {
  const char *host = text, *end, *colon;
  memset(out, 0, sizeof *out);
  if (*text == '[') {
    host = text + 1;
    end = strchr(host, ']');
    if (!end || end[1] != ':') return addr_malformed(text, err);
    colon = end + 1;
  } else {
    colon = end = strrchr(text, ':');
    if (!colon || memchr(text, ':', (size_t)(colon - text)))
      return addr_malformed(text, err);
  }
  size_t len = (size_t)(end - host);
  if (len == 0 || len >= sizeof out->host) return addr_malformed(text, err);
  if (!addr_port(colon + 1, listening, &out->port)) return addr_malformed(text, err);
  memcpy(out->host, host, len);
  return TM_OK;
}

static tm_status addr_resolve(const char *text, bool listening, struct addrinfo **out,
                              uint16_t *port, tm_err *err) {
  tm_addr a;
  char service[8];
  TM_TRY(tm_addr_parse(text, listening, &a, err));
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC};
  if (listening) hints.ai_flags = AI_PASSIVE;
  snprintf(service, sizeof service, "%u", (unsigned)a.port);
  int e = getaddrinfo(a.host, service, &hints, out);
  *port = a.port;
  if (e == 0) return TM_OK;
  return tm_fail(err, listening ? TM_EINVAL : TM_EUNAVAILABLE,
                 "host \"%s\" of address %s is not known: %s", a.host, text,
                 gai_strerror(e));
}

tm_status tm_addr_prepare(int fd, bool is_unix) {
  int one = 1, room = ADDR_UNIX_ROOM, flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) return TM_EINTERNAL;
  if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) return TM_EINTERNAL;
  if (is_unix)
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
  else
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return TM_OK;
}

/* The abstract name of a port: a leading zero byte, no file. */
static socklen_t addr_unix_name(uint16_t port, struct sockaddr_un *un) {
  memset(un, 0, sizeof *un);
  un->sun_family = AF_UNIX;
  int n = snprintf(un->sun_path + 1, sizeof un->sun_path - 1, "tidemill-%u",
                   (unsigned)port);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* --- connecting --- */

static const void *addr_bytes(const struct sockaddr *a, size_t *n) {
  if (a->sa_family == AF_INET6) {
    *n = sizeof(struct in6_addr);
    return &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
  }
  *n = sizeof(struct in_addr);
  return &((const struct sockaddr_in *)(const void *)a)->sin_addr;
}

static bool addr_is_here(const struct addrinfo *ai) {
  struct sockaddr_storage self;
  socklen_t len = sizeof self;
  int fd = socket(ai->ai_family, SOCK_DGRAM, 0);
  if (fd < 0) return false;
  bool ok = connect(fd, ai->ai_addr, ai->ai_addrlen) == 0 &&
            getsockname(fd, (struct sockaddr *)&self, &len) == 0 &&
            self.ss_family == ai->ai_addr->sa_family;
  close(fd);
  if (!ok) return false;
  size_t n, m;
  const void *a = addr_bytes(ai->ai_addr, &n);
  const void *b = addr_bytes((const struct sockaddr *)&self, &m);
  return n == m && memcmp(a, b, n) == 0;
}

static int addr_connect_unix(uint16_t port) {
  struct sockaddr_un un;
  socklen_t len = addr_unix_name(port, &un);
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  if (fd < 0) return -1;
  /* Prepared first: else it would wait for room at a task that stands still. */
  if (tm_addr_prepare(fd, true) == TM_OK &&
      connect(fd, (struct sockaddr *)&un, len) == 0)
    return fd;
  close(fd);
  return -1;
}

/* Wait until a connect in progress is through; 0 or an errno. */
static int addr_finish(int fd, int64_t deadline, tm_cancel *cancel) {
  for (;;) {
    int64_t left = deadline - tm_now_ns();
    if (left <= 0) return ETIMEDOUT;
    if (tm_cancelled(cancel)) return ECANCELED;
    int64_t most = cancel ? 50 : 1000; /* with a flag look at it now and then */
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    int n = poll(&p, 1, (int)(left / 1000000 + 1 > most ? most : left / 1000000 + 1));
    if (n < 0 && errno != EINTR) return errno;
    if (n > 0) break;
  }
  int e = 0;
  socklen_t len = sizeof e;
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &len) < 0 ? errno : e;
}

/* Where nobody listens a socket may be given just that port, and reach itself.  It goes
 * without a trace, so that the task may listen there. */
static bool addr_is_itself(int fd) {
  struct sockaddr_storage self = {0}, peer = {0};
  struct linger at_once = {.l_onoff = 1};
  socklen_t n = sizeof self, m = sizeof peer;
  if (getsockname(fd, (struct sockaddr *)&self, &n) < 0 ||
      getpeername(fd, (struct sockaddr *)&peer, &m) < 0 || n != m ||
      memcmp(&self, &peer, n) != 0)
    return false;
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  return true;
}

static int addr_connect_one(const struct addrinfo *ai, int64_t deadline,
                            tm_cancel *cancel, int *out) {
  int fd = socket(ai->ai_family, SOCK_STREAM, 0), e = 0;
  if (fd < 0) return errno;
  if (tm_addr_prepare(fd, false)) e = EIO;
  if (!e && connect(fd, ai->ai_addr, ai->ai_addrlen) < 0)
    e = errno == EINPROGRESS ? addr_finish(fd, deadline, cancel) : errno;
  if (!e && addr_is_itself(fd)) e = ECONNREFUSED;
  if (e)
    close(fd);
  else
    *out = fd;
  return e;
}

tm_status tm_addr_connect(const char *text, bool use_unix, int64_t timeout_ns,
                          tm_cancel *cancel, int *fd, bool *is_unix, tm_err *err) {
  struct addrinfo *list = NULL;
  uint16_t port;
  int e = ECONNREFUSED;
  int64_t deadline = tm_now_ns() + timeout_ns;
  *fd = -1;
  if (is_unix) *is_unix = false;
  TM_TRY(addr_resolve(text, false, &list, &port, err));
  if (use_unix && list && addr_is_here(list)) *fd = addr_connect_unix(port);
  if (is_unix) *is_unix = *fd >= 0;
  for (struct addrinfo *ai = list; ai && *fd < 0; ai = ai->ai_next)
    e = addr_connect_one(ai, deadline, cancel, fd);
  freeaddrinfo(list);
  if (*fd >= 0) return TM_OK;
  if (e == ECANCELED)
    return tm_fail(err, TM_ECANCELLED, "the connection to %s was cancelled", text);
  return tm_fail(err, TM_EUNAVAILABLE, "no connection to %s: %s", text, strerror(e));
}

/* --- listening --- */

static int addr_listen_one(const struct addrinfo *ai, int *out) {
  int one = 1, e = 0, fd = socket(ai->ai_family, SOCK_STREAM, 0);
  if (fd < 0) return errno;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(fd, ai->ai_addr, ai->ai_addrlen) < 0 || listen(fd, 128) < 0) e = errno;
  if (!e && tm_addr_prepare(fd, false)) e = EIO;
  if (e)
    close(fd);
  else
    *out = fd;
  return e;
}

static uint16_t addr_bound_port(int fd) {
  struct sockaddr_storage self;
  socklen_t len = sizeof self;
  if (getsockname(fd, (struct sockaddr *)&self, &len) < 0) return 0;
  if (self.ss_family == AF_INET6)
    return ntohs(((struct sockaddr_in6 *)(void *)&self)->sin6_port);
  return ntohs(((struct sockaddr_in *)(void *)&self)->sin_port);
}

static int addr_listen_unix(uint16_t port) {
  struct sockaddr_un un;
  socklen_t len = addr_unix_name(port, &un);
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  if (fd < 0) return -1;
  if (bind(fd, (struct sockaddr *)&un, len) == 0 && listen(fd, 128) == 0 &&
      tm_addr_prepare(fd, true) == TM_OK)
    return fd;
  close(fd);
  return -1;
}

tm_status tm_addr_listen(const char *text, int *tfd, int *ufd, uint16_t *port,
                         tm_err *err) {
  struct addrinfo *list = NULL;
  int e = EADDRNOTAVAIL;
  *tfd = *ufd = -1;
  TM_TRY(addr_resolve(text, true, &list, port, err));
  for (struct addrinfo *ai = list; ai && *tfd < 0; ai = ai->ai_next)
    e = addr_listen_one(ai, tfd);
  freeaddrinfo(list);
  if (*tfd < 0)
    return tm_fail(err, e == EADDRINUSE ? TM_EEXISTS : TM_EUNAVAILABLE,
                   "cannot listen on %s: %s%s", text, strerror(e),
                   e == EADDRINUSE ? " (another task runs there: stop it, or choose "
                                     "another port)"
                                   : "");
  *port = addr_bound_port(*tfd);
  *ufd = addr_listen_unix(*port);
  return TM_OK;
}

/* --- a port to listen on later --- */

/* The first port that the kernel gives to connections by itself. */
static uint32_t addr_first_given(void) {
  uint32_t first = 32768;
  FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "r");
  if (!f) return first;
  if (fscanf(f, "%u", &first) != 1) first = 32768;
  fclose(f);
  return first;
}

static uint16_t addr_try_port(uint32_t want) {
  char text[24];
  int tcp, unix_fd;
  uint16_t port;
  snprintf(text, sizeof text, "127.0.0.1:%u", (unsigned)want);
  if (tm_addr_listen(text, &tcp, &unix_fd, &port, NULL)) return 0;
  bool free = unix_fd >= 0;
  close(tcp);
  if (free) close(unix_fd);
  return free ? port : 0;
}

uint16_t tm_addr_unused_port(void) {
  static atomic_uint calls;
  uint32_t end = addr_first_given(), n = end > ADDR_LOW ? end - ADDR_LOW : 0;
  uint32_t from = (uint32_t)getpid() * ADDR_PORTS;
  uint16_t port = 0;
  for (uint32_t i = 0; i < n && !port; i++)
    port = addr_try_port(ADDR_LOW + (from + atomic_fetch_add(&calls, 1)) % n);
  return port ? port : addr_try_port(0);
}
