// A program that knows providers by name only, and four of them: cxi, efa, tcp and sockets. Takes
// the first endpoint of such a name, writes to itself through it, and says which provider, fabric
// and domain it was. Exit code 3 where there is none. Its argument is the API that it asks for.
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void need(long rc, const char* what) {
  if (rc >= 0) return;
  fprintf(stderr, "%s: %s\n", what, fi_strerror((int)-rc));
  exit(1);
}

static const struct fi_info* supported(const struct fi_info* info) {
  static const char* const names[] = {"cxi", "efa", "tcp", "sockets"};
  for (; info != NULL; info = info->next) {
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
      if (strcmp(info->fabric_attr->prov_name, names[i]) == 0) return info;
    }
  }
  return NULL;
}

static void write_to_itself(struct fid_domain* domain, const struct fi_info* info) {
  struct fid_ep* ep;
  struct fid_av* av;
  struct fid_cq* cq;
  struct fid_mr* mr;
  struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
  struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_CONTEXT};
  static char from[64] = "through the other name", to[64];
  char name[256];
  size_t size = sizeof name;
  fi_addr_t self;
  need(fi_endpoint(domain, (struct fi_info*)info, &ep, NULL), "fi_endpoint");
  need(fi_av_open(domain, &av_attr, &av, NULL), "fi_av_open");
  need(fi_cq_open(domain, &cq_attr, &cq, NULL), "fi_cq_open");
  need(fi_ep_bind(ep, &av->fid, 0), "fi_ep_bind");
  need(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
  need(fi_enable(ep), "fi_enable");
  need(fi_getname(&ep->fid, name, &size), "fi_getname");
  if (fi_av_insert(av, name, 1, &self, 0, NULL) != 1) need(-FI_EINVAL, "fi_av_insert");
  need(fi_mr_reg(domain, to, sizeof to, FI_REMOTE_WRITE, 0, 7, 0, &mr, NULL), "fi_mr_reg");
  long rc;
  struct fi_cq_entry done;
  while ((rc = fi_write(ep, from, sizeof from, NULL, self, 0, fi_mr_key(mr), NULL)) == -FI_EAGAIN) {
    fi_cq_read(cq, NULL, 0);
  }
  need(rc, "fi_write");
  const time_t end = time(NULL) + 20;
  while ((rc = fi_cq_read(cq, &done, 1)) == -FI_EAGAIN && time(NULL) < end) {
  }
  need(rc, "fi_cq_read");
  printf("%s\n", strcmp(from, to) == 0 ? "written" : "not written");
  fi_close(&mr->fid);
  fi_close(&ep->fid);
  fi_close(&cq->fid);
  fi_close(&av->fid);
}

int main(int argc, char** argv) {
  unsigned major = 1, minor = 17;
  struct fid_fabric* fabric;
  struct fid_domain* domain;
  struct fi_info *hints = fi_allocinfo(), *all = NULL;
  hints->caps = FI_MSG | FI_RMA;
  hints->ep_attr->type = FI_EP_RDM;
  if (argc > 1 && sscanf(argv[1], "%u.%u", &major, &minor) != 2) return 2;
  const int rc = fi_getinfo(FI_VERSION(major, minor), NULL, NULL, 0, hints, &all);
  const struct fi_info* info = rc == 0 ? supported(all) : NULL;
  if (info == NULL) {
    puts("not supported");
    return 3;
  }
  need(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
  need(fi_domain(fabric, (struct fi_info*)info, &domain, NULL), "fi_domain");
  printf("%s %s %s\n", info->fabric_attr->prov_name, info->fabric_attr->name,
         info->domain_attr->name);
  write_to_itself(domain, info);
  fi_close(&domain->fid);
  fi_close(&fabric->fid);
  fi_freeinfo(all);
  fi_freeinfo(hints);
  return 0;
}
