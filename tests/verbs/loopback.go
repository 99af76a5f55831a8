// A cgo program over libibverbs: an RC queue pair that is connected to itself writes 42 times from one
// half of its memory to the other, each write from a goroutine of its own, while others allocate.
// With the argument "look" it says instead what os.ReadDir finds in /sys/class/infiniband.
package main

/*
#cgo LDFLAGS: -libverbs
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>

static struct ibv_context *context;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char *memory;
enum { HALF = 4096 };

static struct ibv_context *open_ours(void) {
  int n = 0;
  struct ibv_device **list = ibv_get_device_list(&n);
  for (int i = 0; i < n && context == NULL; ++i) {
    if (strcmp(ibv_get_device_name(list[i]), "aperture0") == 0) context = ibv_open_device(list[i]);
  }
  if (list != NULL) ibv_free_device_list(list);
  return context;
}

static int make(void) {
  struct ibv_pd *pd = ibv_alloc_pd(context);
  memory = calloc(2, HALF);
  if (pd == NULL || memory == NULL) return 1;
  mr = ibv_reg_mr(pd, memory, 2 * HALF, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  cq = ibv_create_cq(context, 64, NULL, NULL, 0);
  if (mr == NULL || cq == NULL) return 2;
  struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};
  init.cap.max_send_wr = 64;
  init.cap.max_recv_wr = init.cap.max_send_sge = init.cap.max_recv_sge = 1;
  qp = ibv_create_qp(pd, &init);
  if (qp == NULL) return 3;
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1,
                             .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
  if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                               IBV_QP_ACCESS_FLAGS) != 0) return 4;
  union ibv_gid gid;
  if (ibv_query_gid(context, 1, 0, &gid) != 0) return 5;
  memset(&attr, 0, sizeof attr);
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = qp->qp_num;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.grh.dgid = gid;
  attr.ah_attr.grh.hop_limit = 1;
  attr.ah_attr.port_num = 1;
  if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                               IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                               IBV_QP_MIN_RNR_TIMER) != 0) return 6;
  memset(&attr, 0, sizeof attr);
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = 14;
  attr.retry_cnt = attr.rnr_retry = 7;
  if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                               IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) != 0)
    return 7;
  return 0;
}

static int write_one(int i) {
  memory[i] = (char)(i + 1);
  struct ibv_sge sge = {.addr = (uintptr_t)(memory + i), .length = 1, .lkey = mr->lkey};
  struct ibv_send_wr wr = {.wr_id = i, .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
                           .send_flags = IBV_SEND_SIGNALED}, *bad;
  wr.wr.rdma.remote_addr = (uintptr_t)(memory + HALF + i);
  wr.wr.rdma.rkey = mr->rkey;
  return ibv_post_send(qp, &wr, &bad);
}

static int reap(void) {
  struct ibv_wc wc;
  int n = ibv_poll_cq(cq, 1, &wc);
  return n == 1 && wc.status != IBV_WC_SUCCESS ? -1 : n;
}

static int landed(int i) { return memory[HALF + i] == (char)(i + 1); }
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"sync"
)

const writes = 42

func fail(what string, code C.int) {
	fmt.Fprintln(os.Stderr, what, int(code))
	os.Exit(1)
}

// Go asks the kernel by itself, without the C library.
func look() {
	entries, _ := os.ReadDir("/sys/class/infiniband")
	for _, entry := range entries {
		fmt.Println(entry.Name())
	}
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "look" {
		look()
		return
	}
	if C.open_ours() == nil {
		fail("there is no aperture0", 0)
	}
	if code := C.make(); code != 0 {
		fail("objects", code)
	}
	var all sync.WaitGroup
	for i := 0; i < writes; i++ {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			if code := C.write_one(C.int(i)); code != 0 {
				fail("post", code)
			}
			_ = make([]byte, 1<<20)
		}(i)
	}
	for done := 0; done < writes; {
		n := C.reap()
		if n < 0 {
			fail("completion", n)
		}
		done += int(n)
		runtime.Gosched()
	}
	all.Wait()
	runtime.GC()
	count := 0
	for i := 0; i < writes; i++ {
		count += int(C.landed(C.int(i)))
	}
	fmt.Println(count, "writes landed")
}
