/* A program that works over every NIC that needs no local registration, and over no verbs NIC.
 *
 * Plain libfabric: nothing here is Aperture's own. It offers FI_MR_LOCAL and registers what it
 * receives into, but it sends its header from a buffer of the stack that it forgot to register. Two
 * endpoints of one process exchange that header, and its contents are checked.
 *
 *   cc forgotten_buffer.c -lfabric -o forgotten_buffer
 *   aperture run -- ./forgotten_buffer                                    # passes
 *   APERTURE_MR_MODE=verbs aperture explain -- ./forgotten_buffer         # refused, and says why
 *
 * Exits 0 if the header arrived, 3 if the send was refused, 1 if anything else went wrong.
 */
#define _GNU_SOURCE
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kNameBytes = 256, kTimeoutSeconds = 20 };

struct header {
  uint64_t length;
  uint64_t checksum;
};

struct side {
  struct fid_av* av;
  struct fid_cq* cq;
  struct fid_ep* ep;
  char name[kNameBytes];
  size_t name_bytes;
};

static struct fi_info* info;
static struct fid_domain* domain;

static void check(int64_t status, const char* what) {
  if (status >= 0) return;
  fprintf(stderr, "forgotten_buffer: %s: %s\n", what, fi_strerror((int)-status));
  exit(1);
}

static void open_domain(void) {
  struct fi_info* hints = fi_allocinfo();
  struct fid_fabric* fabric;
  if (hints == NULL) exit(1);
  hints->caps = FI_MSG;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->fabric_attr->prov_name = strdup("aperture");
  check(fi_getinfo(FI_VERSION(1, 5), "127.0.0.1", NULL, FI_SOURCE, hints, &info), "fi_getinfo");
  fi_freeinfo(hints);
  check(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
  check(fi_domain(fabric, info, &domain, NULL), "fi_domain");
}

static struct side open_side(void) {
  struct side side = {.name_bytes = kNameBytes};
  struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_CONTEXT, .size = 16};
  struct fi_av_attr av_attr = {.type = FI_AV_MAP};
  check(fi_av_open(domain, &av_attr, &side.av, NULL), "fi_av_open");
  check(fi_cq_open(domain, &cq_attr, &side.cq, NULL), "fi_cq_open");
  check(fi_endpoint(domain, info, &side.ep, NULL), "fi_endpoint");
  check(fi_ep_bind(side.ep, &side.av->fid, 0), "fi_ep_bind(av)");
  check(fi_ep_bind(side.ep, &side.cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind(cq)");
  check(fi_enable(side.ep), "fi_enable");
  check(fi_getname(&side.ep->fid, side.name, &side.name_bytes), "fi_getname");
  return side;
}

/* Waits for one completion of `side`; the other has to make progress too. */
static void wait_for(struct side* side, struct side* other) {
  struct fi_cq_entry entry;
  const time_t until = time(NULL) + kTimeoutSeconds;
  int64_t n;
  while ((n = fi_cq_read(side->cq, &entry, 1)) == -FI_EAGAIN && time(NULL) < until)
    (void)fi_cq_read(other->cq, &entry, 0);
  check(n, "fi_cq_read");
}

int main(void) {
  struct header arrived = {0, 0};
  struct header header = {4096, 0x5ca1ab1e};
  struct fid_mr* landing;
  struct side sender, receiver;
  fi_addr_t to;
  int64_t status;

  open_domain();
  sender = open_side();
  receiver = open_side();
  if (fi_av_insert(sender.av, receiver.name, 1, &to, 0, NULL) != 1)
    check(-FI_EINVAL, "fi_av_insert");
  check(fi_mr_reg(domain, &arrived, sizeof arrived, FI_RECV, 0, 1, 0, &landing, NULL), "fi_mr_reg");
  check(fi_recv(receiver.ep, &arrived, sizeof arrived, fi_mr_desc(landing), FI_ADDR_UNSPEC, NULL),
        "fi_recv");

  /* here: no registration, no descriptor */
  while ((status = fi_send(sender.ep, &header, sizeof header, NULL, to, NULL)) == -FI_EAGAIN)
    (void)fi_cq_read(sender.cq, NULL, 0);
  if (status != 0) {
    printf("forgotten_buffer: the send was refused: %s\n", fi_strerror((int)-status));
    return 3;
  }
  wait_for(&sender, &receiver);
  wait_for(&receiver, &sender);
  if (arrived.length != header.length || arrived.checksum != header.checksum) {
    printf("forgotten_buffer: the header arrived damaged\n");
    return 1;
  }
  printf("forgotten_buffer: the header arrived\n");
  return 0;
}
