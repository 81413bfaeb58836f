/*
 * httpd.c - a real HTTP server of one thread for specs.
 *
 *     httpd DIR        prints its port on 127.0.0.1 and serves until it is killed
 *
 * A request for /a/b?c reads DIR/_a_b_c (what is no letter, digit or - becomes _): the
 * first line is the status, and after it a header that is required, without which the
 * answer is 401; the rest is the body.  Status 0 never answers.  Without a file: 404.
 * DIR/log gets every request with its headers.
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HTTPD_BYTES = 65536 };

static char request[HTTPD_BYTES], body[HTTPD_BYTES], answer[HTTPD_BYTES + 256];

/* Until the empty line; bytes, 0 when the peer has gone. */
static size_t httpd_read(int fd) {
  size_t n = 0;
  while (n < sizeof request - 1) {
    ssize_t k = read(fd, request + n, sizeof request - 1 - n);
    if (k <= 0) return 0;
    n += (size_t)k;
    request[n] = '\0';
    if (strstr(request, "\r\n\r\n")) return n;
  }
  return 0;
}

/* Status of the file that stands for `path`; its body into body. */
static int httpd_file(const char *dir, const char *path) {
  char name[2048], line[512] = "";
  size_t n = (size_t)snprintf(name, sizeof name, "%s/", dir);
  for (; *path && n < sizeof name - 1; path++)
    name[n++] = isalnum((unsigned char)*path) || *path == '-' ? *path : '_';
  name[n] = '\0';
  body[0] = '\0';
  FILE *f = fopen(name, "rb");
  if (!f) return 404;
  if (!fgets(line, sizeof line, f)) line[0] = '\0';
  body[fread(body, 1, sizeof body - 1, f)] = '\0';
  fclose(f);
  line[strcspn(line, "\n")] = '\0';
  char *need = strchr(line, ' ');
  if (need && !strstr(request, need + 1)) {
    body[0] = '\0';
    return 401;
  }
  return atoi(line);
}

static void httpd_log(const char *dir) {
  char name[2048];
  snprintf(name, sizeof name, "%s/log", dir);
  FILE *f = fopen(name, "ab");
  if (!f) return;
  fputs(request, f);
  fclose(f);
}

static void httpd_serve(const char *dir, int fd) {
  char method[16], path[1024];
  if (!httpd_read(fd) || sscanf(request, "%15s %1023s", method, path) != 2) return;
  httpd_log(dir);
  int status = httpd_file(dir, path);
  if (status == 0) {
    while (read(fd, body, sizeof body) > 0) {
    }
    return;
  }
  int n =
      snprintf(answer, sizeof answer,
               "HTTP/1.1 %d X\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s",
               status, strlen(body), body);
  if (write(fd, answer, (size_t)n) != n) perror("httpd");
}

int main(int argc, char **argv) {
  struct sockaddr_in a = {.sin_family = AF_INET,
                          .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof a;
  int s = socket(AF_INET, SOCK_STREAM, 0);
  if (argc != 2 || s < 0 || bind(s, (struct sockaddr *)&a, sizeof a) || listen(s, 64) ||
      getsockname(s, (struct sockaddr *)&a, &len)) {
    perror("httpd");
    return 1;
  }
  printf("%d\n", ntohs(a.sin_port));
  fflush(stdout);
  for (;;) {
    int fd = accept(s, NULL, NULL);
    if (fd < 0) return 1;
    httpd_serve(argv[1], fd);
    close(fd);
  }
}
