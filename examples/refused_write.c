/* A remote write that goes one byte too far, and what Aperture says about it.
 *
 * Plain libfabric: nothing here is Aperture's own, and any RDM provider with FI_RMA can be named as
 * the first argument (default: aperture). Two processes: the target registers a region of 4096
 * bytes for remote writing and hands out its key; the initiator writes 64 bytes so that the last
 * one falls outside. The write must be refused with FI_EACCES, nothing in the target may change,
 * and a good write on the same endpoint must still work. Exits 0 if all of that is so.
 *
 *   cc refused_write.c -lfabric -o refused_write && aperture run -- ./refused_write
 */
#define _GNU_SOURCE
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

enum { kRegionBytes = 4096, kWriteBytes = 64, kNameBytes = 256, kTimeoutSeconds = 20 };

struct side {
  struct fi_info* info;
  struct fid_fabric* fabric;
  struct fid_domain* domain;
  struct fid_av* av;
  struct fid_cq* cq;
  struct fid_ep* ep;
};

/* What the target tells the initiator, out of band. */
struct invitation {
  size_t name_bytes;
  char name[kNameBytes];
  uint64_t address; /* of the region's first byte, as the mr_mode wants it named */
  uint64_t key;
};

static void die(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("refused_write: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(1);
}

static void check(int status, const char* what) {
  if (status < 0) die("%s: %s", what, fi_strerror(-status));
}

static struct side open_side(const char* provider) {
  struct side side = {0};
  struct fi_info* hints = fi_allocinfo();
  struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_CONTEXT, .size = 16};
  struct fi_av_attr av_attr = {.type = FI_AV_MAP};
  if (hints == NULL) die("out of memory");
  hints->caps = FI_MSG | FI_RMA;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->fabric_attr->prov_name = strdup(provider);
  check(fi_getinfo(FI_VERSION(1, 5), "127.0.0.1", NULL, FI_SOURCE, hints, &side.info),
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

/* Keeps the provider going until the initiator says that it is done, then looks at the region. */
static int be_the_target(const char* provider, int talk) {
  static unsigned char region[kRegionBytes];
  struct side side = open_side(provider);
  struct fid_mr* mr;
  struct invitation invitation = {.name_bytes = kNameBytes};
  struct fi_cq_entry entry;
  char done;
  int touched = 0;
  int intact;

  check(fi_mr_reg(side.domain, region, sizeof region, FI_REMOTE_WRITE, 0, 17, 0, &mr, NULL),
        "fi_mr_reg");
  check(fi_getname(&side.ep->fid, invitation.name, &invitation.name_bytes), "fi_getname");
  if (side.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) invitation.address = (uintptr_t)region;
  invitation.key = fi_mr_key(mr);
  if (write(talk, &invitation, sizeof invitation) != sizeof invitation) die("no initiator");
  while (recv(talk, &done, 1, MSG_DONTWAIT) < 0) fi_cq_read(side.cq, &entry, 1);

  for (int i = 0; i < kRegionBytes; ++i) touched += region[i] != 0;
  intact = touched == kWriteBytes && region[0] == 'g';
  printf("target:    %d of %d bytes were written, all of them by the good write: %s\n", touched,
         kRegionBytes, intact ? "yes" : "NO");
  fi_close(&mr->fid);
  close_side(&side);
  return intact ? 0 : 1;
}

/* Waits for the one completion under way. 0, or the error with its entry filled in. */
static int wait_for_completion(struct side* side, struct fi_cq_err_entry* error) {
  const time_t deadline = time(NULL) + kTimeoutSeconds;
  struct fi_cq_entry entry;
  for (;;) {
    ssize_t got = fi_cq_read(side->cq, &entry, 1);
    if (got == 1) return 0;
    if (got == -FI_EAVAIL) {
      check((int)fi_cq_readerr(side->cq, error, 0), "fi_cq_readerr");
      return error->err;
    }
    if (got != -FI_EAGAIN) check((int)got, "fi_cq_read");
    if (time(NULL) > deadline) die("no completion within %d s", kTimeoutSeconds);
  }
}

static int write_to(struct side* side, fi_addr_t peer, const struct invitation* there,
                    const void* from, uint64_t offset, struct fi_cq_err_entry* error) {
  ssize_t posted;
  do {
    posted = fi_write(side->ep, from, kWriteBytes, NULL, peer, there->address + offset, there->key,
                      NULL);
    if (posted == -FI_EAGAIN) fi_cq_read(side->cq, NULL, 0);
  } while (posted == -FI_EAGAIN);
  check((int)posted, "fi_write");
  return wait_for_completion(side, error);
}

/* Prints the refusal the way any libfabric program can: error, provider's words, explanation. */
static void print_refusal(struct side* side, const struct fi_cq_err_entry* error) {
  char words[512] = "";
  printf("initiator: refused with %s\n", fi_strerror(error->err));
  fi_cq_strerror(side->cq, error->prov_errno, error->err_data, words, sizeof words);
  printf("initiator: %s\n", words);
}

static int be_the_initiator(const char* provider, int talk) {
  char bytes[kWriteBytes];
  char explanation[1024];
  struct side side = open_side(provider);
  struct invitation there;
  fi_addr_t peer;
  struct fi_cq_err_entry error = {.err_data = explanation, .err_data_size = sizeof explanation};
  int refused;
  int good;

  if (recv(talk, &there, sizeof there, MSG_WAITALL) != sizeof there) die("the target is gone");
  if (fi_av_insert(side.av, there.name, 1, &peer, 0, NULL) != 1) die("fi_av_insert failed");

  printf("initiator: writing %d bytes at offset %d of a region of %d: one byte too far\n",
         kWriteBytes, kRegionBytes - kWriteBytes + 1, kRegionBytes);
  memset(bytes, 'b', sizeof bytes);
  refused = write_to(&side, peer, &there, bytes, kRegionBytes - kWriteBytes + 1, &error);
  if (refused == 0) {
    printf("initiator: it was reported as a SUCCESS\n");
  } else {
    print_refusal(&side, &error);
  }
  memset(bytes, 'g', sizeof bytes);
  good = write_to(&side, peer, &there, bytes, 0, &error);
  printf("initiator: a good write on the same endpoint afterwards: %s\n",
         good == 0 ? "done" : fi_strerror(good));
  fflush(stdout); /* before the target speaks */
  if (write(talk, "d", 1) != 1) die("the target is gone");
  close_side(&side);
  return refused == FI_EACCES && good == 0 ? 0 : 1;
}

int main(int argc, char** argv) {
  const char* provider = argc > 1 ? argv[1] : "aperture";
  int ends[2];
  int status = 1;
  int result;
  pid_t target;

  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) die("no socket pair");
  target = fork();
  if (target < 0) die("no second process");
  alarm(2 * kTimeoutSeconds); /* whatever happens, this ends */
  if (target == 0) {
    close(ends[0]);
    exit(be_the_target(provider, ends[1]));
  }
  close(ends[1]);
  result = be_the_initiator(provider, ends[0]);
  if (waitpid(target, &status, 0) != target || status != 0) result = 1;
  return result;
}
