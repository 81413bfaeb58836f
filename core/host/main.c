/* main.c - the program tidemill: runs scripts, or one of its subcommands. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "host/evaluator.h"
#include "host/inspect.h"
#include "host/launch.h"
#include "host/role.h"
#include "host/script.h"

static const struct {
  const char *name;
  int (*run)(int argc, char **argv);
} main_commands[] = {
    {"launch", tm_host_launch},   {"worker", tm_host_role},
    {"ps", tm_host_role},         {"evaluator", tm_host_evaluator},
    {"inspect", tm_host_inspect},
};

/* Standard streams that were closed become /dev/null: what is opened next would take
 * their numbers, and libuv aborts when it closes one of them. */
static void main_streams(void) {
  int fd;
  do fd = open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd > STDERR_FILENO) close(fd);
}

int main(int argc, char **argv) {
  main_streams();
  for (size_t i = 0; argc > 1 && i < TM_COUNT(main_commands); i++)
    if (strcmp(argv[1], main_commands[i].name) == 0)
      return main_commands[i].run(argc - 1, argv + 1);
  return tm_host_script(argc, argv);
}
