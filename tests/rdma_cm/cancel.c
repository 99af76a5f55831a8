/* A thread that waits for an event may be cancelled, as one that waits in any other write(): it
 * ends, nothing stays locked, and the channel goes on working. One whose channel is closed goes on
 * waiting. Also for the hooks' first calls in a signal handler and in vfork(). Prints what is
 * wrong; exit code 0 is success. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <rdma/rdma_user_cm.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WRITE_CM_EVENT = 24 }; /* which the headers of older releases do not name */

static int channel;
static volatile int cleaned;
static char event_failed;
static atomic_int waiter; /* the thread that is about to wait */

static void clean(void* unused) {
  (void)unused;
  cleaned = 1;
}

static long command(unsigned cmd, const void* body, size_t size, size_t out) {
  char message[512];
  const struct rdma_ucm_cmd_hdr head = {cmd, (uint16_t)size, (uint16_t)out};
  memcpy(message, &head, sizeof head);
  memcpy(message + sizeof head, body, size);
  return write(channel, message, sizeof head + size);
}

static long get_event(struct rdma_ucm_event_resp* event) {
  const struct rdma_ucm_get_event body = {(uintptr_t)event};
  return command(RDMA_USER_CM_CMD_GET_EVENT, &body, sizeof body, sizeof *event);
}

/* Its result: whether that failed. */
static void* wait_for_event(void* unused) {
  struct rdma_ucm_event_resp event;
  long n;
  (void)unused;
  waiter = gettid();
  pthread_cleanup_push(clean, NULL);
  n = get_event(&event);
  pthread_cleanup_pop(0);
  return n < 0 ? &event_failed : NULL;
}

static void on_signal(int number) {
  (void)number;
  const int fd = open("/dev/null", O_WRONLY);
  if (write(fd, "x", 1) != 1) _exit(9);
  close(fd);
}

#define CHECK(condition)                                    \
  if (!(condition)) {                                       \
    fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
    return 1;                                               \
  }

static int use_channel(void) {
  uint32_t id = 0, reported = 0;
  const struct rdma_ucm_create_id create = {
      .uid = 1, .response = (uintptr_t)&id, .ps = RDMA_PS_TCP};
  CHECK(command(RDMA_USER_CM_CMD_CREATE_ID, &create, sizeof create, 4) > 0);
  struct rdma_ucm_resolve_ip resolve = {.id = id, .timeout_ms = 1000};
  struct sockaddr_in6* to = &resolve.dst_addr;
  const uint8_t loopback[8] = {2, 0, 0, 7, 127, 0, 0, 1}; /* AF_INET, port 7 */
  memcpy(to, loopback, sizeof loopback);
  CHECK(command(RDMA_USER_CM_CMD_RESOLVE_IP, &resolve, sizeof resolve, 0) > 0);
  struct rdma_ucm_event_resp event;
  CHECK(get_event(&event) > 0 && event.event == 0 && event.uid == 1);
  const struct rdma_ucm_destroy_id destroy = {(uintptr_t)&reported, id, 0};
  CHECK(command(RDMA_USER_CM_CMD_DESTROY_ID, &destroy, sizeof destroy, 4) > 0);
  CHECK(reported == 1);
  return 0;
}

static int sleeps(int thread) {
  char path[64], state = 0;
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
  FILE* const file = fopen(path, "r");
  const int read = file != NULL ? fscanf(file, "%*d %*s %c", &state) : 0;
  if (file != NULL) fclose(file);
  return read == 1 && state == 'S';
}

/* An event comes, and wakes the thread that waits for one; it is taken back with its id, and the
 * channel is closed: rping ends so, and to be told of a closed descriptor is an error to it. */
static int close_beside_who_waits(void) {
  uint32_t id = 0, reported = 0;
  pthread_t thread;
  void* result = NULL;
  struct {
    uint32_t id, reserved, event, status;
    uint64_t arg;
  } say = {.event = 18}; /* RDMA_CM_EVENT_USER */
  channel = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
  CHECK(channel >= 0);
  const struct rdma_ucm_create_id create = {
      .uid = 1, .response = (uintptr_t)&id, .ps = RDMA_PS_TCP};
  CHECK(command(RDMA_USER_CM_CMD_CREATE_ID, &create, sizeof create, 4) > 0);
  waiter = 0;
  CHECK(pthread_create(&thread, NULL, wait_for_event, NULL) == 0);
  while (waiter == 0 || !sleeps(waiter)) sched_yield();
  say.id = id;
  CHECK(command(WRITE_CM_EVENT, &say, sizeof say, 0) > 0);
  const struct rdma_ucm_destroy_id destroy = {(uintptr_t)&reported, id, 0};
  CHECK(command(RDMA_USER_CM_CMD_DESTROY_ID, &destroy, sizeof destroy, 4) > 0);
  CHECK(close(channel) == 0);
  usleep(500);
  pthread_cancel(thread);
  CHECK(pthread_join(thread, &result) == 0);
  CHECK(result != &event_failed);
  return 0;
}

int main(void) {
  alarm(60);
  signal(SIGUSR1, on_signal);
  raise(SIGUSR1);
  channel = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
  CHECK(channel >= 0);
  if (use_channel() != 0) return 1;
  for (int i = 0; i < 20; ++i) {
    pthread_t thread;
    void* result = NULL;
    cleaned = 0;
    CHECK(pthread_create(&thread, NULL, wait_for_event, NULL) == 0);
    if (i % 2 == 1) usleep(2000);
    CHECK(pthread_cancel(thread) == 0);
    CHECK(pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED);
    if (i % 2 == 1) CHECK(cleaned == 1);
    if (use_channel() != 0) return 1;
  }
  const pid_t child = vfork();
  if (child == 0) {
    close(channel);
    execl("/bin/true", "true", (char*)NULL);
    _exit(1);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  if (use_channel() != 0) return 1;
  CHECK(close(channel) == 0);
  CHECK(close(channel) == -1 && errno == EBADF);
  for (int i = 0; i < 100; ++i) {
    if (close_beside_who_waits() != 0) return 1;
  }
  return 0;
}
