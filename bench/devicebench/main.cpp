// What messages and remote access from and to device memory cost, beside the same from and to the
// host's, and beside the driver's own copies: the limit. Two processes, one device.
//
//   devicebench [cuda|rocr|ze]      (default: cuda)
//
// Prints a table, tabs between its columns: what, bytes, the median in microseconds, and MB/s of
// that. Over the stand-ins of tests/memory it only shows that it runs.
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "memory/device_memory.hpp"

namespace {

using aperture::test::DeviceKind;
using aperture::test::Devices;

constexpr size_t kLargest = 64u << 20;
constexpr size_t kSizes[] = {8, 4096, 65536, 1u << 20, 16u << 20, kLargest};

void must(int64_t code, const char* what) {
  if (code >= 0) return;
  std::fprintf(stderr, "devicebench: %s: %s\n", what, fi_strerror(static_cast<int>(-code)));
  std::exit(1);
}

fi_hmem_iface iface_of(DeviceKind kind) {
  return kind == DeviceKind::cuda   ? FI_HMEM_CUDA
         : kind == DeviceKind::rocr ? FI_HMEM_ROCR
                                    : FI_HMEM_ZE;
}

// One endpoint with a buffer of the host's and one of the device's, each registered.
struct Side {
  explicit Side(DeviceKind kind) {
    std::string why;
    devices = Devices::open(kind, why);
    if (devices == nullptr) {
      std::fprintf(stderr, "devicebench: %s\n", why.c_str());
      std::exit(77);
    }
    fi_info* hints = fi_allocinfo();
    hints->caps = FI_MSG | FI_RMA | FI_HMEM;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_HMEM | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup("aperture");
    must(fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints, &info), "fi_getinfo");
    fi_freeinfo(hints);
    must(fi_fabric(info->fabric_attr, &fabric, nullptr), "fi_fabric");
    must(fi_domain(fabric, info, &domain, nullptr), "fi_domain");
    fi_cq_attr cq_attr{};
    cq_attr.format = FI_CQ_FORMAT_CONTEXT;
    must(fi_cq_open(domain, &cq_attr, &cq, nullptr), "fi_cq_open");
    fi_av_attr av_attr{};
    must(fi_av_open(domain, &av_attr, &av, nullptr), "fi_av_open");
    must(fi_endpoint(domain, info, &ep, nullptr), "fi_endpoint");
    must(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
    must(fi_ep_bind(ep, &av->fid, 0), "fi_ep_bind");
    must(fi_enable(ep), "fi_enable");
    buffers[0] = devices->allocate_host(kLargest);
    buffers[1] = devices->allocate(kLargest);
    for (int i = 0; i < 2; ++i) {
      const iovec iov{buffers[i], kLargest};
      fi_mr_attr attr{};
      attr.mr_iov = &iov;
      attr.iov_count = 1;
      attr.access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
      attr.requested_key = static_cast<uint64_t>(i) + 1;
      attr.iface = iface_of(kind);
      attr.device.cuda = devices->number_of(0);
      must(fi_mr_regattr(domain, &attr, i == 0 ? FI_HMEM_HOST_ALLOC : 0, &regions[i]),
           "fi_mr_regattr");
    }
  }
  void wait() const {
    fi_cq_entry entry;
    ssize_t n;
    while ((n = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN) {
    }
    must(n, "fi_cq_read");
  }
  void* desc(int which) const { return fi_mr_desc(regions[which]); }

  std::unique_ptr<Devices> devices;
  fi_info* info = nullptr;
  fid_fabric* fabric = nullptr;
  fid_domain* domain = nullptr;
  fid_cq* cq = nullptr;
  fid_av* av = nullptr;
  fid_ep* ep = nullptr;
  void* buffers[2] = {};  // 0: the host's, 1: the device's
  fid_mr* regions[2] = {};
};

struct Introduction {
  char name[64];
  size_t len;
  uint64_t base[2], key[2];
};

Introduction introduce(const Side& side) {
  Introduction mine{};
  mine.len = sizeof mine.name;
  must(fi_getname(&side.ep->fid, mine.name, &mine.len), "fi_getname");
  for (int i = 0; i < 2; ++i) {
    const bool virtual_addresses = (side.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
    mine.base[i] = virtual_addresses ? reinterpret_cast<uint64_t>(side.buffers[i]) : 0;
    mine.key[i] = fi_mr_key(side.regions[i]);
  }
  return mine;
}

template <typename Call>
void post(const Side& side, Call&& call) {
  int64_t code;
  while ((code = call()) == -FI_EAGAIN) fi_cq_read(side.cq, nullptr, 0);
  must(code, "a post");
}

// Median of the times of fn(), in microseconds.
double median(size_t size, const std::function<void()>& fn) {
  const size_t rounds = size >= (1u << 20) ? 31 : 301;
  std::vector<double> times;
  for (size_t i = 0; i < rounds + 3; ++i) {
    const auto start = std::chrono::steady_clock::now();
    fn();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    if (i >= 3) times.push_back(took.count());
  }
  std::nth_element(times.begin(), times.begin() + static_cast<long>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

void tell(const char* what, size_t size, double us) {
  std::printf("%s\t%zu\t%.2f\t%.0f\n", what, size, us, static_cast<double>(size) / us);
  std::fflush(stdout);
}

struct Order {
  int what;  // 0: the end, 1: ping-pong from buffer `which`, 2: only progress
  int which;
  size_t size, rounds;
};

size_t rounds_of(size_t size) {
  return (size >= (1u << 20) ? 31 : 301) + 3;
}

void serve(DeviceKind kind, int socket) {
  const Side side(kind);
  const Introduction mine = introduce(side);
  Introduction peer{};
  fi_addr_t to = 0;
  if (write(socket, &mine, sizeof mine) < 0 || read(socket, &peer, sizeof peer) < 0) _exit(1);
  must(fi_av_insert(side.av, peer.name, 1, &to, 0, nullptr), "fi_av_insert");
  for (Order order{}; read(socket, &order, sizeof order) == sizeof order && order.what != 0;) {
    void* const buf = side.buffers[order.which];
    for (size_t i = 0; order.what == 1 && i < order.rounds; ++i) {
      if (i == 0) {
        post(side, [&] {
          return fi_recv(side.ep, buf, order.size, side.desc(order.which), FI_ADDR_UNSPEC, nullptr);
        });
        if (write(socket, "!", 1) != 1) _exit(1);
      }
      side.wait();
      if (i + 1 < order.rounds) {
        post(side, [&] {
          return fi_recv(side.ep, buf, order.size, side.desc(order.which), FI_ADDR_UNSPEC, nullptr);
        });
      }
      post(side,
           [&] { return fi_send(side.ep, buf, order.size, side.desc(order.which), to, nullptr); });
      side.wait();
    }
    if (order.what == 2) {  // until the next order
      char word;
      while (recv(socket, &word, 1, MSG_PEEK | MSG_DONTWAIT) < 0) fi_cq_read(side.cq, nullptr, 0);
    }
  }
  _exit(0);
}

void send_order(int socket, Order order) {
  if (write(socket, &order, sizeof order) != sizeof order) std::exit(1);
}

void measure(DeviceKind kind, int socket) {
  const Side side(kind);
  const Introduction mine = introduce(side);
  Introduction peer{};
  fi_addr_t to = 0;
  if (read(socket, &peer, sizeof peer) < 0 || write(socket, &mine, sizeof mine) < 0) std::exit(1);
  must(fi_av_insert(side.av, peer.name, 1, &to, 0, nullptr), "fi_av_insert");
  std::printf("# %s%s\nwhat\tbytes\tus\tMB/s\n", aperture::test::name_of(kind),
              side.devices->is_standin() ? " (a stand-in)" : "");
  for (const size_t size : kSizes) {
    tell("driver_out_pinned", size, median(size, [&] {
           if (!side.devices->read(side.buffers[0], side.buffers[1], size)) std::exit(1);
         }));
    tell("driver_in_pinned", size, median(size, [&] {
           if (!side.devices->write(side.buffers[1], side.buffers[0], size)) std::exit(1);
         }));
  }
  const char* const messages[] = {"message_host", "message_device"};
  for (int which = 0; which < 2; ++which) {
    for (const size_t size : kSizes) {
      send_order(socket, {1, which, size, rounds_of(size)});
      char ready;
      if (read(socket, &ready, 1) != 1) std::exit(1);
      void* const buf = side.buffers[which];
      tell(messages[which], size,
           median(size, [&] {
             post(side, [&] {
               return fi_recv(side.ep, buf, size, side.desc(which), FI_ADDR_UNSPEC, nullptr);
             });
             post(side, [&] { return fi_send(side.ep, buf, size, side.desc(which), to, nullptr); });
             side.wait();
             side.wait();
           }) / 2);
    }
  }
  const char* const writes[2][2] = {{"write_host_to_host", "write_host_to_device"},
                                    {"write_device_to_host", "write_device_to_device"}};
  const char* const reads[2][2] = {{"read_host_from_host", "read_host_from_device"},
                                   {"read_device_from_host", "read_device_from_device"}};
  send_order(socket, {2, 0, 0, 0});
  for (int from = 0; from < 2; ++from) {
    for (int at = 0; at < 2; ++at) {
      for (const size_t size : kSizes) {
        tell(writes[from][at], size, median(size, [&] {
               post(side, [&] {
                 return fi_write(side.ep, side.buffers[from], size, side.desc(from), to,
                                 peer.base[at], peer.key[at], nullptr);
               });
               side.wait();
             }));
        tell(reads[from][at], size, median(size, [&] {
               post(side, [&] {
                 return fi_read(side.ep, side.buffers[from], size, side.desc(from), to,
                                peer.base[at], peer.key[at], nullptr);
               });
               side.wait();
             }));
      }
    }
  }
  send_order(socket, {0, 0, 0, 0});
}

}  // namespace

int main(int argc, char** argv) {
  DeviceKind kind = DeviceKind::cuda;
  for (const DeviceKind one : aperture::test::kDeviceKinds) {
    if (argc > 1 && std::strcmp(argv[1], aperture::test::name_of(one)) == 0) kind = one;
  }
  if (argc > 2 || (argc == 2 && std::strcmp(argv[1], aperture::test::name_of(kind)) != 0)) {
    std::fprintf(stderr, "usage: devicebench [cuda|rocr|ze]\n");
    return 2;
  }
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) != 0) return 1;
  const pid_t child = fork();  // before anything of a driver's
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(sockets[0]);
    serve(kind, sockets[1]);
  }
  close(sockets[1]);
  alarm(300);
  measure(kind, sockets[0]);
  int status = 1;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}
