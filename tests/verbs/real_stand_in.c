/* A libibverbs with one device, for tests on machines that have none: what stands in for the
 * distribution's library where the verbs door looks for the real one. Its objects are its own, and
 * each call that reaches it is counted under its name: stand_in_calls() tells how often.
 *
 * It has not all of libibverbs: what is missing here is what an older library would not have.
 */
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>

#undef ibv_reg_mr
#undef ibv_query_port

#define KINDS 32

static struct {
  const char* name;
  int calls;
} counted[KINDS];

static void count(const char* name) {
  for (int i = 0; i < KINDS; ++i) {
    if (counted[i].name == NULL) counted[i].name = name;
    if (strcmp(counted[i].name, name) == 0) {
      ++counted[i].calls;
      return;
    }
  }
  abort();
}

int stand_in_calls(const char* name) {
  for (int i = 0; i < KINDS && counted[i].name != NULL; ++i) {
    if (strcmp(counted[i].name, name) == 0) return counted[i].calls;
  }
  return 0;
}

/* libraries of real devices' drivers read past the end */
static union {
  struct ibv_device device;
  char padding[4096];
} standin = {.device = {.node_type = IBV_NODE_CA,
                        .transport_type = IBV_TRANSPORT_IB,
                        .name = "standin0",
                        .dev_name = "uverbs77"}};

static int poll_cq(struct ibv_cq* cq, int n, struct ibv_wc* wc) {
  count("poll_cq");
  (void)cq;
  if (n < 1) return 0;
  memset(wc, 0, sizeof *wc);
  wc->wr_id = 4711;
  return 1;
}

static int post_send(struct ibv_qp* qp, struct ibv_send_wr* wr, struct ibv_send_wr** bad) {
  count("post_send");
  (void)qp;
  *bad = wr;
  return 77;
}

struct ibv_device** ibv_get_device_list(int* n) {
  count("ibv_get_device_list");
  struct ibv_device** list = calloc(2, sizeof *list);
  if (list == NULL) return NULL;
  list[0] = &standin.device;
  if (n != NULL) *n = 1;
  return list;
}

void ibv_free_device_list(struct ibv_device** list) {
  count("ibv_free_device_list");
  /* the real one gives each device back, and must never meet another library's */
  for (int i = 0; list[i] != NULL; ++i) {
    if (list[i] != &standin.device) abort();
  }
  free(list);
}

const char* ibv_get_device_name(struct ibv_device* device) {
  count("ibv_get_device_name");
  return device->name;
}

__be64 ibv_get_device_guid(struct ibv_device* device) {
  count("ibv_get_device_guid");
  (void)device;
  return 0x1234;
}

struct ibv_context* ibv_open_device(struct ibv_device* device) {
  count("ibv_open_device");
  struct ibv_context* context = calloc(1, sizeof *context);
  if (context == NULL) return NULL;
  context->device = device;
  context->ops.poll_cq = poll_cq;
  context->ops.post_send = post_send;
  context->cmd_fd = context->async_fd = -1;
  return context;
}

int ibv_close_device(struct ibv_context* context) {
  count("ibv_close_device");
  free(context);
  return 0;
}

int ibv_query_device(struct ibv_context* context, struct ibv_device_attr* attr) {
  count("ibv_query_device");
  (void)context;
  memset(attr, 0, sizeof *attr);
  attr->vendor_id = 0x5a5a;
  return 0;
}

/* As the real one: it asks for the list of devices, by a name that is the verbs door's by then, and
 * looks into what each of them has behind it in this library. */
struct ibv_context* ibv_import_device(int cmd_fd) {
  count("ibv_import_device");
  struct ibv_device** list = ibv_get_device_list(NULL);
  if (list == NULL) return NULL;
  for (int i = 0; list[i] != NULL; ++i) {
    if (list[i] != &standin.device) abort();
  }
  struct ibv_context* context = calloc(1, sizeof *context);
  if (context != NULL) {
    context->device = list[0];
    context->cmd_fd = cmd_fd;
  }
  ibv_free_device_list(list);
  return context;
}

struct ibv_pd* ibv_import_pd(struct ibv_context* context, uint32_t handle) {
  count("ibv_import_pd");
  struct ibv_pd* pd = calloc(1, sizeof *pd);
  if (pd == NULL) return NULL;
  pd->context = context;
  pd->handle = handle;
  return pd;
}

void ibv_unimport_pd(struct ibv_pd* pd) {
  count("ibv_unimport_pd");
  free(pd);
}

struct ibv_pd* ibv_alloc_pd(struct ibv_context* context) {
  count("ibv_alloc_pd");
  struct ibv_pd* pd = calloc(1, sizeof *pd);
  if (pd != NULL) pd->context = context;
  return pd;
}

int ibv_dealloc_pd(struct ibv_pd* pd) {
  count("ibv_dealloc_pd");
  free(pd);
  return 0;
}

struct ibv_mr* ibv_reg_mr(struct ibv_pd* pd, void* addr, size_t length, int access) {
  count("ibv_reg_mr");
  (void)access;
  struct ibv_mr* mr = calloc(1, sizeof *mr);
  if (mr == NULL) return NULL;
  mr->context = pd->context;
  mr->pd = pd;
  mr->addr = addr;
  mr->length = length;
  mr->rkey = 0xabcd;
  return mr;
}

int ibv_dereg_mr(struct ibv_mr* mr) {
  count("ibv_dereg_mr");
  free(mr);
  return 0;
}

struct ibv_cq* ibv_create_cq(struct ibv_context* context, int cqe, void* cq_context,
                             struct ibv_comp_channel* channel, int vector) {
  count("ibv_create_cq");
  (void)vector;
  struct ibv_cq* cq = calloc(1, sizeof *cq);
  if (cq == NULL) return NULL;
  cq->context = context;
  cq->channel = channel;
  cq->cq_context = cq_context;
  cq->cqe = cqe;
  return cq;
}

int ibv_destroy_cq(struct ibv_cq* cq) {
  count("ibv_destroy_cq");
  free(cq);
  return 0;
}

struct ibv_qp* ibv_create_qp(struct ibv_pd* pd, struct ibv_qp_init_attr* attr) {
  count("ibv_create_qp");
  struct ibv_qp* qp = calloc(1, sizeof *qp);
  if (qp == NULL) return NULL;
  qp->context = pd->context;
  qp->pd = pd;
  qp->qp_num = 99;
  qp->qp_type = attr->qp_type;
  return qp;
}

int ibv_modify_qp(struct ibv_qp* qp, struct ibv_qp_attr* attr, int mask) {
  count("ibv_modify_qp");
  (void)qp, (void)attr, (void)mask;
  return 33;
}

int ibv_destroy_qp(struct ibv_qp* qp) {
  count("ibv_destroy_qp");
  free(qp);
  return 0;
}
