// The library that a door comes in by is loaded, used and closed again, by a program that is linked
// with none: its control thread goes on running, so the door's code has to stay where it is, and
// what is opened after that works.
//
// `test_fault_dlclose fabric` or `... verbs` (under `aperture run`). Exits 0, or says what failed.
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace {

constexpr int kRounds = 5;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

void must(bool good, const char* what) {
  if (!good) fail(what);
}

struct Library {
  explicit Library(const char* name) : handle(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
    must(handle != nullptr, name);
  }
  void close() const { must(dlclose(handle) == 0, "dlclose"); }
  template <typename Function>
  Function* function(const char* name) const {
    void* at = dlsym(handle, name);
    must(at != nullptr, name);
    return reinterpret_cast<Function*>(at);
  }
  void* handle;
};

// An endpoint that sends itself a message. leave_open: nothing is closed but the library.
void use_fabric(bool leave_open) {
  const Library library("libfabric.so.1");
  auto* dup_info = library.function<fi_info*(const fi_info*)>("fi_dupinfo");
  auto* free_info = library.function<void(fi_info*)>("fi_freeinfo");
  auto* get_info =
      library
          .function<int(uint32_t, const char*, const char*, uint64_t, const fi_info*, fi_info**)>(
              "fi_getinfo");
  auto* open_fabric = library.function<int(fi_fabric_attr*, fid_fabric**, void*)>("fi_fabric");
  fi_info* hints = dup_info(nullptr);
  hints->caps = FI_MSG;
  hints->ep_attr->type = FI_EP_RDM;
  hints->fabric_attr->prov_name = strdup("aperture");
  fi_info* info = nullptr;
  must(get_info(FI_VERSION(1, 17), "127.0.0.1", nullptr, FI_SOURCE, hints, &info) == 0,
       "fi_getinfo");
  fid_fabric* fabric = nullptr;
  fid_domain* domain = nullptr;
  fid_av* av = nullptr;
  fid_cq* cq = nullptr;
  fid_ep* ep = nullptr;
  fi_av_attr av_attr{};
  fi_cq_attr cq_attr{};
  cq_attr.format = FI_CQ_FORMAT_MSG;
  must(open_fabric(info->fabric_attr, &fabric, nullptr) == 0, "fi_fabric");
  must(fi_domain(fabric, info, &domain, nullptr) == 0, "fi_domain");
  must(fi_av_open(domain, &av_attr, &av, nullptr) == 0, "fi_av_open");
  must(fi_cq_open(domain, &cq_attr, &cq, nullptr) == 0, "fi_cq_open");
  must(fi_endpoint(domain, info, &ep, nullptr) == 0, "fi_endpoint");
  must(fi_ep_bind(ep, &av->fid, 0) == 0 && fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV) == 0 &&
           fi_enable(ep) == 0,
       "fi_enable");
  char name[256];
  size_t size = sizeof name;
  fi_addr_t self = 0;
  must(fi_getname(&ep->fid, name, &size) == 0, "fi_getname");
  must(fi_av_insert(av, name, 1, &self, 0, nullptr) == 1, "fi_av_insert");
  static char in[8], out[8] = "message";
  must(fi_recv(ep, in, sizeof in, nullptr, FI_ADDR_UNSPEC, nullptr) == 0, "fi_recv");
  while (fi_send(ep, out, sizeof out, nullptr, self, nullptr) == -FI_EAGAIN) {
    fi_cq_read(cq, nullptr, 0);
  }
  fi_cq_msg_entry entry{};
  for (int completions = 0; completions < 2;) {
    const ssize_t got = fi_cq_read(cq, &entry, 1);
    must(got == 1 || got == -FI_EAGAIN, "fi_cq_read");
    completions += got == 1;
  }
  must(std::memcmp(in, out, sizeof in) == 0, "the message");
  if (!leave_open) {
    for (fid* object : {&ep->fid, &cq->fid, &av->fid, &domain->fid, &fabric->fid})
      must(fi_close(object) == 0, "fi_close");
  }
  free_info(info);
  free_info(hints);
  library.close();
}

// A queue pair that can be told to wait for a peer.
void use_verbs(bool leave_open) {
  const Library library("libibverbs.so.1");
  auto* list_of = library.function<ibv_device**(int*)>("ibv_get_device_list");
  auto* free_list = library.function<void(ibv_device**)>("ibv_free_device_list");
  auto* name_of = library.function<const char*(ibv_device*)>("ibv_get_device_name");
  auto* open_device = library.function<ibv_context*(ibv_device*)>("ibv_open_device");
  auto* close_device = library.function<int(ibv_context*)>("ibv_close_device");
  auto* alloc_pd = library.function<ibv_pd*(ibv_context*)>("ibv_alloc_pd");
  auto* dealloc_pd = library.function<int(ibv_pd*)>("ibv_dealloc_pd");
  auto* create_cq =
      library.function<ibv_cq*(ibv_context*, int, void*, ibv_comp_channel*, int)>("ibv_create_cq");
  auto* destroy_cq = library.function<int(ibv_cq*)>("ibv_destroy_cq");
  auto* create_qp = library.function<ibv_qp*(ibv_pd*, ibv_qp_init_attr*)>("ibv_create_qp");
  auto* destroy_qp = library.function<int(ibv_qp*)>("ibv_destroy_qp");
  int count = 0;
  ibv_device** list = list_of(&count);
  ibv_context* context = nullptr;
  for (int i = 0; list != nullptr && i < count; ++i) {
    if (std::strcmp(name_of(list[i]), "aperture0") == 0) context = open_device(list[i]);
  }
  must(context != nullptr, "no aperture0: use `aperture run`");
  free_list(list);
  ibv_pd* pd = alloc_pd(context);
  must(pd != nullptr, "ibv_alloc_pd");
  ibv_cq* cq = create_cq(context, 16, nullptr, nullptr, 0);
  must(cq != nullptr, "ibv_create_cq");
  ibv_qp_init_attr attr{};
  attr.send_cq = attr.recv_cq = cq;
  attr.cap = {16, 16, 1, 1, 0};
  attr.qp_type = IBV_QPT_RC;
  ibv_qp* qp = create_qp(pd, &attr);
  must(qp != nullptr, "ibv_create_qp");
  ibv_wc wc{};
  must(ibv_poll_cq(cq, 1, &wc) == 0, "ibv_poll_cq");
  if (!leave_open) {
    must(destroy_qp(qp) == 0 && destroy_cq(cq) == 0 && dealloc_pd(pd) == 0 &&
             close_device(context) == 0,
         "closing");
  }
  library.close();
}

}  // namespace

int main(int argc, char** argv) {
  must(argc == 2, "usage: fault_dlclose fabric|verbs");
  alarm(60);
  const auto use = std::strcmp(argv[1], "fabric") == 0 ? use_fabric : use_verbs;
  for (int i = 0; i < kRounds; ++i) {
    use(i == kRounds - 2);
    usleep(20'000);  // the control thread has its turns
  }
  std::printf("%s: loaded, used and closed %d times\n", argv[1], kRounds);
  return 0;
}
