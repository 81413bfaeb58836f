/*
 * proxy - a wire between two tasks that a test can cut, stop, slow and count.
 *
 *     proxy TARGET_HOST:PORT CONTROL [LISTEN_HOST:PORT]
 *
 * Prints "port N" and forwards each connection that comes to that port.  Commands are
 * lines appended to the file CONTROL; each is answered by a line on standard output,
 *
 *     done K up=BYTES down=BYTES conns=N cuts=N
 *
 * with K the number of the command, the bytes forwarded to and from the target so far,
 * the connections open now, and those that a cut ended.
 *
 *     cut                 reset all connections
 *     cutafter up|down N  end a connection once N more bytes went that way (0: before
 *                         any other byte); once
 *     refuse on|off       new connections are reset at once
 *     stop, go            accept no new connection; accept again
 *     drop on|off         nothing is forwarded, no end is passed on; what was sent
 *                         waits in the network and goes on when it is off
 *     delay MS            bytes go on MS later
 *     only TASK           cut, refuse and drop are meant for connections of this task
 *                         ("/job:worker/task:0", as it said in its hello); - for all
 *     count               nothing: for the answer
 *
 * It ends with its starter's standard output or by a signal.
 */
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

enum { PROXY_FULL = 4 << 20, PROXY_READ = 64 << 10, PROXY_TICK_MS = 2 };

typedef struct chunk {
  struct chunk *next;
  uint64_t due; /* ms of the loop's clock */
  size_t n;
  uv_write_t write;
  char data[];
} chunk;

struct pair;

/* One end; its queue holds what is to be written to it. */
typedef struct side {
  struct pair *pair;
  uv_tcp_t tcp;
  chunk *first, *last;
  size_t queued;
  bool reading, ended, shut; /* ended: nothing more comes from it */
} side;

typedef struct pair {
  struct pair *next;
  side in, out; /* the client's, the target's */
  uv_connect_t connect;
  uv_shutdown_t down[2];
  int open; /* handles not yet closed */
  int under_way;
  bool connected, closing, cutting; /* cutting: close when all is written */
  bool named;
  char task[48]; /* who connected; "": not known */
} pair;

static uv_loop_t *loop;
static uv_tcp_t listener;
static uv_timer_t tick;
static struct sockaddr_in target;
static pair *pairs;
static const char *control;
static long control_at;
static unsigned long long moved[2]; /* up, down */
static long long cut_after[2] = {-1, -1};
static unsigned commands, cuts;
static bool dropping, stopped, refusing, waiting;
static uint64_t delay_ms;
static char only[48];

static void pair_closed(uv_handle_t *h) {
  pair *p = ((side *)h->data)->pair;
  if (--p->open) return;
  pair **at = &pairs;
  while (*at != p) at = &(*at)->next;
  *at = p->next;
  side *s[2] = {&p->in, &p->out};
  for (int i = 0; i < 2; i++)
    for (chunk *c = s[i]->first, *next; c; c = next) {
      next = c->next;
      free(c);
    }
  free(p);
}

static void pair_close(pair *p, bool reset) {
  if (p->closing) return;
  p->closing = true;
  side *s[2] = {&p->in, &p->out};
  for (int i = 0; i < 2; i++) {
    if (!reset || uv_tcp_close_reset(&s[i]->tcp, pair_closed))
      uv_close((uv_handle_t *)&s[i]->tcp, pair_closed);
  }
}

static void side_flush(side *s);

/* Are orders meant for this connection? */
static bool pair_meant(const pair *p) { return !only[0] || strcmp(only, p->task) == 0; }

static bool pair_dropped(const pair *p) {
  return dropping && (p->named || !only[0]) && pair_meant(p);
}

/* The first bytes of a client are its hello. */
static void pair_name(pair *p, const char *b, size_t n) {
  p->named = true;
  for (size_t i = 0; i + 5 < n; i++) {
    if (memcmp(b + i, "/job:", 5)) continue;
    size_t k = 0;
    for (; i + k < n && k + 1 < sizeof p->task && b[i + k] > ' ' && b[i + k] < 127; k++)
      p->task[k] = b[i + k];
    p->task[k] = 0;
    return;
  }
}

static void side_written(uv_write_t *w, int status) {
  side *s = (side *)w->handle->data;
  free(w->data);
  s->pair->under_way--;
  if (s->pair->closing) return;
  if (status < 0 || (s->pair->cutting && s->pair->under_way == 0))
    pair_close(s->pair, false);
}

/* How much of n bytes may still go in this direction. */
static size_t cut_take(pair *p, int way, size_t n) {
  if (cut_after[way] < 0) return n;
  if ((long long)n < cut_after[way]) {
    cut_after[way] -= (long long)n;
    return n;
  }
  n = (size_t)cut_after[way];
  cut_after[way] = -1;
  p->cutting = true;
  cuts++;
  return n;
}

static void side_shut(uv_shutdown_t *r, int status) {
  (void)r;
  (void)status;
}

static void side_flush(side *s) {
  pair *p = s->pair;
  int way = s == &p->out ? 0 : 1;
  while (s->first && !p->closing && !p->cutting && !pair_dropped(p) && p->connected &&
         s->first->due <= uv_now(loop)) {
    chunk *c = s->first;
    s->first = c->next;
    s->queued -= c->n;
    size_t n = cut_take(p, way, c->n);
    moved[way] += n;
    uv_buf_t b = uv_buf_init(c->data, (unsigned)n);
    c->write.data = c;
    p->under_way++;
    if (uv_write(&c->write, (uv_stream_t *)&s->tcp, &b, 1, side_written)) {
      free(c);
      pair_close(p, false);
    }
  }
  side *from = s == &p->out ? &p->in : &p->out;
  if (!s->first && from->ended && !s->shut && p->connected && !p->closing &&
      !pair_dropped(p)) {
    s->shut = true;
    if (p->in.shut && p->out.shut && !p->under_way)
      pair_close(p, false);
    else if (uv_shutdown(&p->down[way], (uv_stream_t *)&s->tcp, side_shut))
      pair_close(p, false);
  }
}

static void side_alloc(uv_handle_t *h, size_t want, uv_buf_t *b) {
  (void)h;
  (void)want;
  chunk *c = malloc(sizeof *c + PROXY_READ);
  *b = uv_buf_init(c ? c->data : NULL, c ? PROXY_READ : 0);
}

static void side_read(uv_stream_t *h, ssize_t n, const uv_buf_t *b) {
  side *s = h->data, *to = s == &s->pair->in ? &s->pair->out : &s->pair->in;
  chunk *c = b->base ? (chunk *)(void *)(b->base - offsetof(chunk, data)) : NULL;
  if (n <= 0) {
    free(c);
    if (n == 0) return;
    s->ended = true;
    s->reading = false;
    uv_read_stop(h);
    if (n != UV_EOF && !pair_dropped(s->pair))
      pair_close(s->pair, true);
    else
      side_flush(to);
    return;
  }
  if (s == &s->pair->in && !s->pair->named) {
    pair_name(s->pair, c->data, (size_t)n);
    if (refusing && only[0] && pair_meant(s->pair)) {
      free(c);
      pair_close(s->pair, true);
      return;
    }
  }
  c->next = NULL;
  c->n = (size_t)n;
  c->due = uv_now(loop) + delay_ms;
  if (to->first)
    to->last->next = c;
  else
    to->first = c;
  to->last = c;
  to->queued += c->n;
  side_flush(to);
}

/* Read while there is room, and nothing at all while dropping. */
static void side_watch(side *s) {
  side *to = s == &s->pair->in ? &s->pair->out : &s->pair->in;
  bool want = !pair_dropped(s->pair) && !s->ended && to->queued < PROXY_FULL &&
              uv_stream_get_write_queue_size((uv_stream_t *)&to->tcp) < PROXY_FULL;
  if (want == s->reading || s->pair->closing || !s->pair->connected) return;
  s->reading = want;
  if (want)
    uv_read_start((uv_stream_t *)&s->tcp, side_alloc, side_read);
  else
    uv_read_stop((uv_stream_t *)&s->tcp);
}

static void pair_look(pair *p) {
  if (p->closing) return;
  side_flush(&p->in);
  if (!p->closing) side_flush(&p->out);
  if (p->closing) return;
  if (p->cutting && p->under_way == 0) {
    pair_close(p, false);
    return;
  }
  side_watch(&p->in);
  side_watch(&p->out);
}

static void pair_connected(uv_connect_t *r, int status) {
  pair *p = ((side *)r->handle->data)->pair;
  if (status < 0) {
    pair_close(p, true);
    return;
  }
  p->connected = true;
  uv_tcp_nodelay(&p->out.tcp, 1);
  for (int way = 0; way < 2; way++)
    if (cut_after[way] == 0) cut_take(p, way, 0);
  pair_look(p);
}

static void accept_one(void) {
  pair *p = calloc(1, sizeof *p);
  if (!p) return;
  p->in.pair = p->out.pair = p;
  uv_tcp_init(loop, &p->in.tcp);
  uv_tcp_init(loop, &p->out.tcp);
  p->in.tcp.data = &p->in;
  p->out.tcp.data = &p->out;
  p->open = 2;
  p->next = pairs;
  pairs = p;
  if (uv_accept((uv_stream_t *)&listener, (uv_stream_t *)&p->in.tcp)) {
    pair_close(p, false);
    return;
  }
  uv_tcp_nodelay(&p->in.tcp, 1);
  if ((refusing && !only[0]) ||
      uv_tcp_connect(&p->connect, &p->out.tcp, (const struct sockaddr *)&target,
                     pair_connected))
    pair_close(p, true);
}

static void on_connection(uv_stream_t *server, int status) {
  (void)server;
  if (status < 0) return;
  waiting = stopped; /* not accepted: it stays in the backlog */
  if (!stopped) accept_one();
}

static void cut_all(void) {
  for (pair *p = pairs; p; p = p->next) {
    if (p->closing || !pair_meant(p)) continue;
    cuts++;
    pair_close(p, true);
  }
}

static void obey(const char *line) {
  char way[8];
  unsigned long long n;
  if (strcmp(line, "cut") == 0) {
    cut_all();
  } else if (sscanf(line, "cutafter %7s %llu", way, &n) == 2) {
    cut_after[strcmp(way, "down") == 0] = (long long)n;
  } else if (sscanf(line, "refuse %7s", way) == 1) {
    refusing = strcmp(way, "on") == 0;
  } else if (strcmp(line, "stop") == 0) {
    stopped = true;
  } else if (strcmp(line, "go") == 0) {
    stopped = false;
    if (waiting) accept_one();
    waiting = false;
  } else if (sscanf(line, "drop %7s", way) == 1) {
    dropping = strcmp(way, "on") == 0;
  } else if (sscanf(line, "only %47s", only) == 1) {
    if (strcmp(only, "-") == 0) only[0] = 0;
  } else if (sscanf(line, "delay %llu", &n) == 1) {
    delay_ms = n;
  } else if (strcmp(line, "count") != 0) {
    fprintf(stderr, "proxy: no such command: %s\n", line);
    exit(2);
  }
  for (pair *p = pairs; p; p = p->next) pair_look(p);
  int open = 0;
  for (pair *p = pairs; p; p = p->next) open += !p->closing;
  printf("done %u up=%llu down=%llu conns=%d cuts=%u\n", ++commands, moved[0], moved[1],
         open, cuts);
  if (fflush(stdout)) exit(1);
}

static void look_at_control(void) {
  char line[128];
  FILE *f = fopen(control, "r");
  if (!f) return;
  if (fseek(f, control_at, SEEK_SET) == 0)
    while (fgets(line, sizeof line, f)) {
      size_t n = strlen(line);
      if (n == 0 || line[n - 1] != '\n') break; /* not yet whole */
      control_at += (long)n;
      line[n - 1] = 0;
      if (n > 1) obey(line);
    }
  fclose(f);
}

static void on_tick(uv_timer_t *t) {
  (void)t;
  look_at_control();
  for (pair *p = pairs, *next; p; p = next) {
    next = p->next;
    pair_look(p);
  }
}

static int parse(const char *text, struct sockaddr_in *out) {
  char host[64];
  int port;
  if (sscanf(text, "%63[^:]:%d", host, &port) != 2) return -1;
  return uv_ip4_addr(host, port, out);
}

int main(int argc, char **argv) {
  struct sockaddr_in at;
  int len = sizeof at;
  loop = uv_default_loop();
  if (argc < 3 || parse(argv[1], &target) ||
      parse(argc > 3 ? argv[3] : "127.0.0.1:0", &at)) {
    fprintf(stderr, "usage: proxy TARGET_HOST:PORT CONTROL [LISTEN_HOST:PORT]\n");
    return 2;
  }
  control = argv[2];
  signal(SIGPIPE, SIG_IGN);
  uv_tcp_init(loop, &listener);
  if (uv_tcp_bind(&listener, (const struct sockaddr *)&at, 0) ||
      uv_listen((uv_stream_t *)&listener, 128, on_connection) ||
      uv_tcp_getsockname(&listener, (struct sockaddr *)&at, &len)) {
    fprintf(stderr, "proxy: cannot listen\n");
    return 1;
  }
  printf("port %d\n", (int)ntohs(at.sin_port));
  fflush(stdout);
  uv_timer_init(loop, &tick);
  uv_timer_start(&tick, on_tick, PROXY_TICK_MS, PROXY_TICK_MS);
  return uv_run(loop, UV_RUN_DEFAULT);
}
