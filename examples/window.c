/* A memory window: a write through it lands, and after the invalidation it is refused.
 *
 * Aperture's extension of libfabric (aperture/fi_window.h, aperture_fi_window(3)). Two processes:
 * the owner registers 4096 bytes without any remote right and opens a window of 64 of them to its
 * one peer; the peer writes through it, and takes the window back itself with the message that says
 * so. What it writes then is refused with FI_EACCES, and nothing of it lands. Exits 0 if all of
 * that is so.
 *
 *   cc window.c -lfabric -o window && aperture run -- ./window
 */
#define _GNU_SOURCE
#include <aperture/fi_window.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kRegionBytes = 4096, kWindowAt = 1024, kWindowBytes = 64, kTimeoutSeconds = 20 };

struct side {
  struct fi_info* info;
  struct fid_fabric* fabric;
  struct fid_domain* domain;
  struct fid_av* av;
  struct fid_cq* cq;
  struct fid_ep* ep;
  struct aperture_window_ops* windows;
};

struct name {
  size_t bytes;
  char text[256];
};

/* What the owner tells its peer of the window, out of band. */
struct invitation {
  uint64_t address;
  uint64_t key;
};

static void die(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("window: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(1);
}

static void check(int status, const char* what) {
  if (status < 0) die("%s: %s", what, fi_strerror(-status));
}

static struct side open_side(void) {
  struct side side = {0};
  struct fi_info* hints = fi_allocinfo();
  struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_DATA, .size = 16};
  struct fi_av_attr av_attr = {.type = FI_AV_MAP};
  if (hints == NULL) die("out of memory");
  hints->caps = FI_MSG | FI_RMA;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->fabric_attr->prov_name = strdup("aperture");
  check(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &side.info),
        "fi_getinfo");
  fi_freeinfo(hints);
  check(fi_fabric(side.info->fabric_attr, &side.fabric, NULL), "fi_fabric");
  check(fi_domain(side.fabric, side.info, &side.domain, NULL), "fi_domain");
  check(fi_av_open(side.domain, &av_attr, &side.av, NULL), "fi_av_open");
  check(fi_cq_open(side.domain, &cq_attr, &side.cq, NULL), "fi_cq_open");
  check(fi_endpoint(side.domain, side.info, &side.ep, NULL), "fi_endpoint");
  check(fi_ep_bind(side.ep, &side.av->fid, 0), "fi_ep_bind(av)");
  check(fi_ep_bind(side.ep, &side.cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind(cq)");
  check(fi_enable(side.ep), "fi_enable");
  check(fi_open_ops(&side.domain->fid, APERTURE_WINDOW_OPS, 0, (void**)&side.windows, NULL),
        "fi_open_ops");
  return side;
}

static void close_side(struct side* side) {
  fi_close(&side->ep->fid);
  fi_close(&side->cq->fid);
  fi_close(&side->av->fid);
  fi_close(&side->domain->fid);
  fi_close(&side->fabric->fid);
  fi_freeinfo(side->info);
}

/* Names go both ways, so that each side knows the other's address. */
static fi_addr_t meet(struct side* side, int talk) {
  struct name name = {.bytes = sizeof name.text};
  fi_addr_t peer;
  check(fi_getname(&side->ep->fid, name.text, &name.bytes), "fi_getname");
  if (write(talk, &name, sizeof name) != sizeof name) die("the other side is gone");
  if (recv(talk, &name, sizeof name, MSG_WAITALL) != sizeof name) die("the other side is gone");
  if (fi_av_insert(side->av, name.text, 1, &peer, 0, NULL) != 1) die("fi_av_insert failed");
  return peer;
}

/* Waits for the one completion under way. 0, or the error with its entry filled in. */
static int wait_for_completion(struct side* side, struct fi_cq_data_entry* entry,
                               struct fi_cq_err_entry* error) {
  const time_t deadline = time(NULL) + kTimeoutSeconds;
  for (;;) {
    ssize_t got = fi_cq_read(side->cq, entry, 1);
    if (got == 1) return 0;
    if (got == -FI_EAVAIL) {
      check((int)fi_cq_readerr(side->cq, error, 0), "fi_cq_readerr");
      return error->err;
    }
    if (got != -FI_EAGAIN) check((int)got, "fi_cq_read");
    if (time(NULL) > deadline) die("no completion within %d s", kTimeoutSeconds);
  }
}

static int be_the_owner(int talk) {
  static unsigned char memory[kRegionBytes];
  struct side side = open_side();
  const fi_addr_t peer = meet(&side, talk);
  struct aperture_window_bind bind = {.size = sizeof bind, .length = kWindowBytes};
  struct aperture_window* window;
  struct invitation invitation;
  struct fi_cq_data_entry entry;
  struct fi_cq_err_entry error = {0};
  char inbox[16];
  char done;
  int touched = 0;
  int intact;

  check(fi_mr_reg(side.domain, memory, sizeof memory, FI_SEND | FI_RECV, 0, 17, 0, &bind.mr, NULL),
        "fi_mr_reg");
  check(side.windows->allocate(side.domain, NULL, &window), "allocate");
  bind.addr = kWindowAt;
  if (side.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) bind.addr += (uintptr_t)memory;
  bind.access = FI_REMOTE_WRITE;
  bind.ep = side.ep;
  bind.peer = peer;
  check(side.windows->bind(window, &bind, &invitation.key), "bind");
  invitation.address = side.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? bind.addr : 0;
  check((int)fi_recv(side.ep, inbox, sizeof inbox, NULL, peer, NULL), "fi_recv");
  if (write(talk, &invitation, sizeof invitation) != sizeof invitation) die("no peer");

  check(-wait_for_completion(&side, &entry, &error), "receiving");
  intact = (entry.flags & APERTURE_INVALIDATED) != 0 && entry.data == invitation.key;
  printf("owner: \"%s\" came, and with it the end of the window: %s\n", inbox,
         intact ? "yes" : "NO");
  fflush(stdout);
  if (write(talk, "i", 1) != 1) die("no peer");
  while (recv(talk, &done, 1, MSG_DONTWAIT) < 0) fi_cq_read(side.cq, &entry, 0);

  for (int i = 0; i < kRegionBytes; ++i) touched += memory[i] != 0;
  intact = intact && touched == kWindowBytes && memory[kWindowAt] == 'w';
  printf("owner: %d of %d bytes were written, all of them through the window: %s\n", touched,
         kRegionBytes, intact ? "yes" : "NO");
  fi_close(&window->fid);
  fi_close(&bind.mr->fid);
  close_side(&side);
  return intact ? 0 : 1;
}

static int write_through(struct side* side, fi_addr_t peer, const struct invitation* there,
                         char letter, struct fi_cq_err_entry* error) {
  char bytes[kWindowBytes];
  struct fi_cq_data_entry entry;
  ssize_t posted;
  memset(bytes, letter, sizeof bytes);
  do {
    posted = fi_write(side->ep, bytes, sizeof bytes, NULL, peer, there->address, there->key, NULL);
    if (posted == -FI_EAGAIN) fi_cq_read(side->cq, NULL, 0);
  } while (posted == -FI_EAGAIN);
  check((int)posted, "fi_write");
  return wait_for_completion(side, &entry, error);
}

static int be_the_peer(int talk) {
  char explanation[1024];
  struct side side = open_side();
  const fi_addr_t owner = meet(&side, talk);
  struct invitation there;
  struct fi_cq_data_entry entry;
  struct fi_cq_err_entry error = {.err_data = explanation, .err_data_size = sizeof explanation};
  const char farewell[] = "I am done";
  char words[512] = "";
  char invalidated;
  int landed;
  int refused;

  if (recv(talk, &there, sizeof there, MSG_WAITALL) != sizeof there) die("the owner is gone");
  landed = write_through(&side, owner, &there, 'w', &error);
  printf("peer:  a write through the window: %s\n", landed == 0 ? "landed" : fi_strerror(landed));
  check(
      (int)side.windows->send_inv(side.ep, farewell, sizeof farewell, NULL, owner, there.key, NULL),
      "send_inv");
  check(-wait_for_completion(&side, &entry, &error), "sending with invalidation");
  fflush(stdout); /* before the owner speaks */
  if (recv(talk, &invalidated, 1, MSG_WAITALL) != 1) die("the owner is gone");
  refused = write_through(&side, owner, &there, 'x', &error);
  if (refused == 0) {
    printf("peer:  another write through it was reported as a SUCCESS\n");
  } else {
    fi_cq_strerror(side.cq, error.prov_errno, error.err_data, words, sizeof words);
    printf("peer:  another write through it: %s\npeer:  %s\n", fi_strerror(refused), words);
  }
  fflush(stdout);
  if (write(talk, "d", 1) != 1) die("the owner is gone");
  close_side(&side);
  return landed == 0 && refused == FI_EACCES ? 0 : 1;
}

int main(void) {
  int ends[2];
  int status = 1;
  int result;
  pid_t owner;

  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) die("no socket pair");
  owner = fork();
  if (owner < 0) die("no second process");
  alarm(2 * kTimeoutSeconds); /* whatever happens, this ends */
  if (owner == 0) {
    close(ends[0]);
    exit(be_the_owner(ends[1]));
  }
  close(ends[1]);
  result = be_the_peer(ends[0]);
  if (waitpid(owner, &status, 0) != owner || status != 0) result = 1;
  return result;
}
