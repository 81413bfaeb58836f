#include "host/launch_task.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/*
 * Design.  A life is a process and the two pipes of its output; it is freed when all
 * three are closed, so what a dying process printed last is passed on whatever comes
 * after it.
 *
 * Invariants:
 *   (1) `open` counts the handles of a life that libuv still holds.
 *   (2) task->life is the life whose exit was not seen yet.
 */
enum { LAUNCH_LINE = 4096 };

typedef struct launch_stream {
  uv_pipe_t pipe;
  struct launch_life *life;
  FILE *to;
  char line[LAUNCH_LINE];
  size_t n;
  char chunk[LAUNCH_LINE];
} launch_stream;

typedef struct launch_life {
  tm_launch_task *task;
  uv_process_t process;
  launch_stream out, err;
  int open;
} launch_life;

void tm_launch_task_init(tm_launch_task *t, uv_loop_t *loop, const char *job,
                         int index) {
  t->loop = loop;
  t->job = job;
  t->index = index;
  t->inherit = -1;
  snprintf(t->name, sizeof t->name, "/job:%s/task:%d", job, index);
  uv_timer_init(loop, &t->again);
  t->again.data = t;
}

bool tm_launch_task_runs(const tm_launch_task *t) { return t->life != NULL; }

static bool launch_is_chief(const tm_launch_task *t) {
  return strcmp(t->job, "chief") == 0;
}

/* --- output --- */

static void launch_line(launch_stream *s) {
  tm_launch_task *t = s->life->task;
  fprintf(s->to, "[%s %d] ", t->job, t->index);
  fwrite(s->line, 1, s->n, s->to);
  fputc('\n', s->to);
  fflush(s->to);
  s->n = 0;
}

static void launch_text(launch_stream *s, const char *p, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (p[i] == '\n' || s->n == sizeof s->line) launch_line(s);
    if (p[i] != '\n') s->line[s->n++] = p[i];
  }
}

static void launch_alloc(uv_handle_t *h, size_t want, uv_buf_t *buf) {
  launch_stream *s = h->data;
  (void)want;
  *buf = uv_buf_init(s->chunk, sizeof s->chunk);
}

static void launch_closed(launch_life *life) {
  if (--life->open == 0) tm_free(life, sizeof *life);
}

static void launch_pipe_closed(uv_handle_t *h) {
  launch_closed(((launch_stream *)h->data)->life);
}

static void launch_read(uv_stream_t *h, ssize_t n, const uv_buf_t *buf) {
  launch_stream *s = h->data;
  if (n > 0) launch_text(s, buf->base, (size_t)n);
  if (n >= 0) return;
  if (s->n) launch_line(s);
  uv_close((uv_handle_t *)h, launch_pipe_closed);
}

/* --- life and death --- */

static void launch_process_closed(uv_handle_t *h) { launch_closed(h->data); }

static void launch_exit(uv_process_t *p, int64_t status, int sig) {
  launch_life *life = p->data;
  tm_launch_task *t = life->task;
  t->life = NULL;
  uv_close((uv_handle_t *)p, launch_process_closed);
  t->ended(t, status, sig);
}

static void launch_stream_init(launch_life *life, launch_stream *s, FILE *to) {
  uv_pipe_init(life->task->loop, &s->pipe, 0);
  s->pipe.data = s;
  s->life = life;
  s->to = to;
  life->open++;
}

int tm_launch_task_start(tm_launch_task *t, char **args, char **env) {
  bool chief = launch_is_chief(t);
  uv_stdio_container_t io[4] = {{.flags = UV_IGNORE},
                                {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE},
                                {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE},
                                {.flags = UV_INHERIT_FD, .data.fd = t->inherit}};
  launch_life *life = tm_calloc(1, sizeof *life);
  if (!life) return UV_ENOMEM;
  life->task = t;
  if (chief) {
    for (int i = 0; i < 3; i++) {
      io[i].flags = UV_INHERIT_FD;
      io[i].data.fd = i;
    }
  } else {
    launch_stream_init(life, &life->out, stdout);
    launch_stream_init(life, &life->err, stderr);
    io[1].data.stream = (uv_stream_t *)&life->out.pipe;
    io[2].data.stream = (uv_stream_t *)&life->err.pipe;
  }
  uv_process_options_t o = {.exit_cb = launch_exit,
                            .file = args[0],
                            .args = args,
                            .env = env,
                            .stdio_count = t->inherit < 0 ? 3 : 4,
                            .stdio = io};
  life->process.data = life;
  life->open++;
  int r = uv_spawn(t->loop, &life->process, &o);
  if (r)
    uv_close((uv_handle_t *)&life->process, launch_process_closed);
  else
    t->life = life;
  for (launch_stream *s = &life->out; !chief && s;
       s = s == &life->out ? &life->err : NULL) {
    if (r || uv_read_start((uv_stream_t *)&s->pipe, launch_alloc, launch_read))
      uv_close((uv_handle_t *)&s->pipe, launch_pipe_closed);
  }
  return r;
}

void tm_launch_task_signal(tm_launch_task *t, int sig) {
  if (t->life) uv_process_kill(&t->life->process, sig);
}

int tm_launch_task_died(tm_launch_task *t, int64_t now_ns) {
  int recent = 0;
  if (t->ndeath == TM_LAUNCH_DEATHS_MAX + 1) {
    memmove(t->death, t->death + 1, TM_LAUNCH_DEATHS_MAX * sizeof *t->death);
    t->ndeath--;
  }
  t->death[t->ndeath++] = now_ns;
  for (int i = 0; i < t->ndeath; i++)
    if (now_ns - t->death[i] < TM_LAUNCH_WITHIN_S * INT64_C(1000000000)) recent++;
  if (recent > t->deaths) return -1;
  int delay = TM_LAUNCH_DELAY_MS;
  for (int i = 1; i < recent && delay < TM_LAUNCH_DELAY_MAX_MS; i++) delay *= 2;
  return delay < TM_LAUNCH_DELAY_MAX_MS ? delay : TM_LAUNCH_DELAY_MAX_MS;
}
