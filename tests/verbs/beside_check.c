/* A program with two devices before it: one of another library (real_stand_in.c) and aperture0.
 * Each call about the first must reach that library, with its own objects and its own answers; each
 * about the second must not. Exits 0 if so, else says which line was wrong.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEMAND(so)                                                               \
  do {                                                                           \
    if (!(so)) {                                                                 \
      fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #so, errno); \
      exit(1);                                                                   \
    }                                                                            \
  } while (0)

static int (*calls)(const char*);
static char memory[4096];

static void everything_of_the_other_device(struct ibv_device* device) {
  DEMAND(strcmp(ibv_get_device_name(device), "standin0") == 0);
  DEMAND(ibv_get_device_guid(device) == 0x1234);
  struct ibv_context* context = ibv_open_device(device);
  DEMAND(context != NULL && context->device == device);
  struct ibv_device_attr attr;
  DEMAND(ibv_query_device(context, &attr) == 0 && attr.vendor_id == 0x5a5a);
  struct ibv_pd* pd = ibv_alloc_pd(context);
  DEMAND(pd != NULL && pd->context == context);
  struct ibv_mr* mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
  DEMAND(mr != NULL && mr->rkey == 0xabcd && mr->pd == pd);
  struct ibv_cq* cq = ibv_create_cq(context, 4, NULL, NULL, 0);
  DEMAND(cq != NULL);
  struct ibv_wc wc;
  DEMAND(ibv_poll_cq(cq, 1, &wc) == 1 && wc.wr_id == 4711);
  struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};
  struct ibv_qp* qp = ibv_create_qp(pd, &init);
  DEMAND(qp != NULL && qp->qp_num == 99);
  struct ibv_send_wr wr = {.opcode = IBV_WR_SEND}, *bad = NULL;
  DEMAND(ibv_post_send(qp, &wr, &bad) == 77 && bad == &wr);
  struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT};
  DEMAND(ibv_modify_qp(qp, &to, IBV_QP_STATE) == 33);
  /* what that library does not have is refused, and nothing of ours is done instead */
  struct ibv_srq_init_attr srq = {.attr = {.max_wr = 1, .max_sge = 1}};
  errno = 0;
  DEMAND(ibv_create_srq(pd, &srq) == NULL && errno == EOPNOTSUPP);
  DEMAND(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
  DEMAND(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
  /* that library looks for the device in a list, in which it must find its own alone */
  int fd = open("/dev/zero", O_RDWR | O_CLOEXEC); /* stands in for its uverbs file */
  struct ibv_context* imported = ibv_import_device(fd);
  DEMAND(imported != NULL && imported->device == device && imported->cmd_fd == fd);
  DEMAND((pd = ibv_import_pd(imported, 7)) != NULL && pd->handle == 7);
  ibv_unimport_pd(pd);
  DEMAND(calls("ibv_unimport_pd") == 1 && ibv_close_device(imported) == 0 && close(fd) == 0);
  int count = 0;
  struct ibv_device** list = ibv_get_device_list(&count);
  DEMAND(list != NULL && count == 2);
  ibv_free_device_list(list);
}

static void nothing_of_ours_is_imported(struct ibv_context* context, struct ibv_pd* pd) {
  int fd = dup(context->cmd_fd);
  for (int at = 0; at < 2; ++at) {
    errno = 0;
    DEMAND(ibv_import_device(at == 0 ? fd : context->cmd_fd) == NULL && errno == EOPNOTSUPP);
  }
  errno = 0;
  DEMAND(ibv_import_pd(context, pd->handle) == NULL && errno == EOPNOTSUPP);
  errno = 0;
  DEMAND(ibv_import_mr(pd, 1) == NULL && errno == EOPNOTSUPP);
  errno = 0;
  DEMAND(ibv_import_dm(context, 1) == NULL && errno == EOPNOTSUPP);
  ibv_unimport_pd(pd);
  DEMAND(close(fd) == 0);
}

static void everything_of_ours(struct ibv_device* device) {
  DEMAND(strcmp(ibv_get_device_name(device), "aperture0") == 0);
  struct ibv_context* context = ibv_open_device(device);
  DEMAND(context != NULL);
  struct ibv_device_attr attr;
  DEMAND(ibv_query_device(context, &attr) == 0 && attr.phys_port_cnt == 1);
  struct ibv_pd* pd = ibv_alloc_pd(context);
  DEMAND(pd != NULL);
  struct ibv_mr* mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
  DEMAND(mr != NULL);
  struct ibv_cq* cq = ibv_create_cq(context, 4, NULL, NULL, 0);
  DEMAND(cq != NULL);
  struct ibv_wc wc;
  DEMAND(ibv_poll_cq(cq, 1, &wc) == 0);
  nothing_of_ours_is_imported(context, pd);
  struct ibv_qp_init_attr init = {.send_cq = cq,
                                  .recv_cq = cq,
                                  .cap = {.max_send_wr = 1, .max_recv_wr = 1},
                                  .qp_type = IBV_QPT_RC};
  struct ibv_qp* qp = ibv_create_qp(pd, &init);
  DEMAND(qp != NULL);
  DEMAND(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
  DEMAND(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
}

int main(void) {
  void* real = dlopen("libaperture-real-ibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
  DEMAND(real != NULL);
  *(void**)&calls = dlsym(real, "stand_in_calls");
  DEMAND(calls != NULL);
  static const char* const both[] = {"ibv_open_device", "ibv_close_device", "ibv_query_device",
                                     "ibv_alloc_pd",    "ibv_dealloc_pd",   "ibv_reg_mr",
                                     "ibv_dereg_mr",    "ibv_create_cq",    "ibv_destroy_cq",
                                     "ibv_create_qp",   "ibv_destroy_qp",   "poll_cq"};
  static const char* const imports[] = {"ibv_import_device", "ibv_import_pd", "ibv_unimport_pd"};
  int n = 0;
  struct ibv_device** list = ibv_get_device_list(&n);
  DEMAND(list != NULL && n == 2 && list[2] == NULL);
  DEMAND(calls("ibv_get_device_list") == 1);
  everything_of_ours(list[1]); /* appended: the real ones keep their places */
  for (size_t i = 0; i < sizeof both / sizeof *both; ++i) DEMAND(calls(both[i]) == 0);
  for (size_t i = 0; i < sizeof imports / sizeof *imports; ++i) DEMAND(calls(imports[i]) == 0);
  everything_of_the_other_device(list[0]);
  for (size_t i = 0; i < sizeof both / sizeof *both; ++i) {
    DEMAND(calls(both[i]) == (strcmp(both[i], "ibv_close_device") == 0 ? 2 : 1));
  }
  DEMAND(calls("post_send") == 1 && calls("ibv_modify_qp") == 1);
  ibv_free_device_list(list);
  DEMAND(calls("ibv_free_device_list") == 3);
  puts("both devices answer");
  return 0;
}
