// One side of a connection through librpma, whose calls all have to succeed: for librpma_check.cpp.
// A side takes one thing at a time from its completion queues, so the order in which they come is
// checked as well. What is wrong ends the process with a sentence.
#pragma once

#include <fcntl.h>
#include <infiniband/verbs.h>
#include <librpma.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

namespace aperture::test {

inline const char* side = "";  // "server" or "client"

inline void must(bool holds, const char* what) {
  if (holds) return;
  std::printf("librpma_check: wrong at the %s: %s\n", side, what);
  std::fflush(stdout);
  std::_Exit(1);
}

inline void ok(int result, const char* what) {
  must(result == 0, (std::string(what) + ": " + rpma_err_2str(result)).c_str());
}

// Ends an object of librpma, which has to be possible.
template <typename T, int (*End)(T**)>
struct Ender {
  void operator()(T* object) const { ok(End(&object), "the end of an object"); }
};
using Peer = std::unique_ptr<rpma_peer, Ender<rpma_peer, rpma_peer_delete>>;
using Region = std::unique_ptr<rpma_mr_local, Ender<rpma_mr_local, rpma_mr_dereg>>;
using RemoteRegion = std::unique_ptr<rpma_mr_remote, Ender<rpma_mr_remote, rpma_mr_remote_delete>>;
using Endpoint = std::unique_ptr<rpma_ep, Ender<rpma_ep, rpma_ep_shutdown>>;
using Connection = std::unique_ptr<rpma_conn, Ender<rpma_conn, rpma_conn_delete>>;
using ConnectionConfig = std::unique_ptr<rpma_conn_cfg, Ender<rpma_conn_cfg, rpma_conn_cfg_delete>>;
using PeerConfig = std::unique_ptr<rpma_peer_cfg, Ender<rpma_peer_cfg, rpma_peer_cfg_delete>>;

enum class Kind {
  one_queue,        // sends and receives complete in one
  receive_queue,    // receives complete in a queue of their own
  shared_channel,   // so they do, and one channel tells of both
  read_only,        // the server's memory cannot be written
  read_beyond_end,  // the client reads past its end
  refused,          // the server does not take the connection
};
// What each side shows: the whole of it, and in its second half what the other side has written.
constexpr size_t kShown = 1 << 20;
constexpr size_t kHalf = kShown / 2;

inline unsigned char pattern(const char* whose, size_t i) {
  return static_cast<unsigned char>(i * 31 + i / 251 + static_cast<unsigned char>(whose[0]));
}

inline void fill(unsigned char* at, size_t n, const char* whose) {
  for (size_t i = 0; i < n; ++i) at[i] = pattern(whose, i);
}

inline bool is_filled(const unsigned char* at, size_t n, const char* whose) {
  for (size_t i = 0; i < n; ++i) {
    if (at[i] != pattern(whose, i)) return false;
  }
  return true;
}

// What is flushed to persistence has to be a mapping of a file: librpma 1.3 has the device do it,
// which refuses any other memory.
class Memory {
 public:
  Memory(rpma_peer* peer, size_t size, int usage) : bytes(map_file(size)), size_(size) {
    rpma_mr_local* made = nullptr;
    ok(rpma_mr_reg(peer, bytes, size, usage, &made), "rpma_mr_reg");
    region.reset(made);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    region.reset();
    ::munmap(bytes, size_);
  }
  static unsigned char* map_file(size_t size) {
    static int number = 0;
    // in the folder of the test, which goes with it
    const std::string name = "librpma_check." + std::string(side) + std::to_string(::getpid()) +
                             "." + std::to_string(++number);
    const int fd = ::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    must(fd >= 0 && ::ftruncate(fd, static_cast<off_t>(size)) == 0, "a file of its own");
    void* const at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(at != MAP_FAILED, "mmap");
    ::close(fd);
    return static_cast<unsigned char*>(at);
  }
  uint64_t& word(size_t at) { return *reinterpret_cast<uint64_t*>(bytes + at); }

  unsigned char* const bytes;
  Region region;

 private:
  const size_t size_;
};

// The private data of both directions: who it is, and descriptors of its peer and of its memory.
struct Card {
  char side[8] = {};
  uint8_t peer_bytes = 0;
  uint8_t region_bytes = 0;
  std::array<unsigned char, 46> descriptors{};
};
static_assert(sizeof(Card) == 56, "as much as a connection request of rdma_cm holds");

inline Card card_of(const rpma_mr_local* shown) {
  Card card;
  std::snprintf(card.side, sizeof card.side, "%s", side);
  rpma_peer_cfg* made = nullptr;
  ok(rpma_peer_cfg_new(&made), "rpma_peer_cfg_new");
  const PeerConfig config(made);
  ok(rpma_peer_cfg_set_direct_write_to_pmem(made, true), "rpma_peer_cfg_set_direct_write_to_pmem");
  size_t peer_bytes = 0, region_bytes = 0;
  ok(rpma_peer_cfg_get_descriptor_size(made, &peer_bytes), "rpma_peer_cfg_get_descriptor_size");
  ok(rpma_mr_get_descriptor_size(shown, &region_bytes), "rpma_mr_get_descriptor_size");
  must(peer_bytes + region_bytes <= card.descriptors.size(), "the size of descriptors");
  ok(rpma_peer_cfg_get_descriptor(made, card.descriptors.data()), "rpma_peer_cfg_get_descriptor");
  ok(rpma_mr_get_descriptor(shown, card.descriptors.data() + peer_bytes), "rpma_mr_get_descriptor");
  card.peer_bytes = static_cast<uint8_t>(peer_bytes);
  card.region_bytes = static_cast<uint8_t>(region_bytes);
  return card;
}

// One side of one connection.
class Link {
 public:
  Link(rpma_peer* peer, Kind of_kind)
      : kind(of_kind),
        shown(peer, kShown,
              of_kind == Kind::read_only
                  ? RPMA_MR_USAGE_READ_SRC
                  : RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_WRITE_DST |
                        RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY | RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT),
        own(peer, kShown, RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_SEND),
        inbox(peer, 4096, RPMA_MR_USAGE_RECV),
        card_(card_of(shown.region.get())) {
    fill(shown.bytes, kHalf, side);
    rpma_conn_cfg* made = nullptr;
    ok(rpma_conn_cfg_new(&made), "rpma_conn_cfg_new");
    config_.reset(made);
    ok(rpma_conn_cfg_set_timeout(made, 30'000), "rpma_conn_cfg_set_timeout");
    if (kind == Kind::receive_queue || kind == Kind::shared_channel) {
      ok(rpma_conn_cfg_set_rcq_size(made, 10), "rpma_conn_cfg_set_rcq_size");
    }
    ok(rpma_conn_cfg_set_compl_channel(made, kind == Kind::shared_channel),
       "rpma_conn_cfg_set_compl_channel");
  }

  rpma_conn_cfg* config() { return config_.get(); }

  // Takes the request. What arrives first finds its receive.
  void connect(rpma_conn_req* request) {
    ok(rpma_conn_req_recv(request, inbox.region.get(), 0, 8, &inbox), "rpma_conn_req_recv");
    const rpma_conn_private_data data{&card_, sizeof card_};
    rpma_conn* made = nullptr;
    ok(rpma_conn_req_connect(&request, &data, &made), "rpma_conn_req_connect");
    conn_.reset(made);
    rpma_conn_event expected = RPMA_CONN_ESTABLISHED;
    if (kind == Kind::refused) expected = RPMA_CONN_REJECTED;
    await(expected);
    if (kind == Kind::refused) return;
    ok(rpma_conn_get_cq(made, &cq_), "rpma_conn_get_cq");
    ok(rpma_conn_get_rcq(made, &rcq_), "rpma_conn_get_rcq");
    const bool has_own = kind == Kind::receive_queue || kind == Kind::shared_channel;
    must((rcq_ != nullptr) == has_own, "a receive queue where one was asked for, and only there");
  }

  void know(const rpma_conn_private_data& data) {
    must(data.len >= sizeof(Card), "as much private data as was given");
    Card card;
    std::memcpy(&card, data.ptr, sizeof card);
    other_side = card.side;
    must(other_side == (std::string(side) == "client" ? "server" : "client"), "private data");
    rpma_mr_remote* region = nullptr;
    ok(rpma_mr_remote_from_descriptor(card.descriptors.data() + card.peer_bytes, card.region_bytes,
                                      &region),
       "rpma_mr_remote_from_descriptor");
    theirs.reset(region);
    size_t size = 0;
    ok(rpma_mr_remote_get_size(region, &size), "rpma_mr_remote_get_size");
    must(size == kShown, "the size of the other's memory");
    rpma_peer_cfg* config = nullptr;
    ok(rpma_peer_cfg_from_descriptor(card.descriptors.data(), card.peer_bytes, &config),
       "rpma_peer_cfg_from_descriptor");
    their_config_.reset(config);
  }

  void know_by_connection() {
    rpma_conn_private_data data{};
    ok(rpma_conn_get_private_data(conn(), &data), "rpma_conn_get_private_data");
    know(data);
  }

  void may_flush_to_persistence() {
    ok(rpma_conn_apply_remote_peer_cfg(conn(), their_config_.get()),
       "rpma_conn_apply_remote_peer_cfg");
  }

  void await(rpma_conn_event expected) {
    rpma_conn_event event = RPMA_CONN_UNDEFINED;
    ok(rpma_conn_next_event(conn(), &event), "rpma_conn_next_event");
    must(event == expected, (std::string(rpma_utils_conn_event_2str(event)) + " instead of " +
                             rpma_utils_conn_event_2str(expected))
                                .c_str());
  }

  // The next completion of what this side has begun.
  ibv_wc completion() { return next(cq_); }

  void completed(const void* what, ibv_wc_status status = IBV_WC_SUCCESS) {
    const ibv_wc wc = completion();
    must(wc.status == status, ibv_wc_status_str(wc.status));
    must(wc.wr_id == reinterpret_cast<uintptr_t>(what), "the order of completions");
  }

  // The next receive, whose place is given back at once.
  ibv_wc receive(uint64_t& value) {
    const ibv_wc wc = next(rcq_ != nullptr ? rcq_ : cq_);
    must(wc.status == IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
    must(wc.wr_id == reinterpret_cast<uintptr_t>(&inbox), "a receive where one is due");
    must(wc.opcode == IBV_WC_RECV || wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM, "its opcode");
    value = inbox.word(0);
    ok(rpma_recv(conn(), inbox.region.get(), 0, 8, &inbox), "rpma_recv");
    return wc;
  }

  void send(uint64_t value) {
    own.word(0) = value;
    ok(rpma_send(conn(), own.region.get(), 0, 8, RPMA_F_COMPLETION_ALWAYS, &own), "rpma_send");
    const ibv_wc wc = completion();
    must(wc.status == IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
    must(wc.wr_id == reinterpret_cast<uintptr_t>(&own) && wc.opcode == IBV_WC_SEND,
         "a send completes before what answers it arrives");
  }

  void nothing_is_left() {
    ibv_wc wc{};
    for (rpma_cq* cq : {cq_, rcq_}) {
      if (cq == nullptr) continue;
      must(rpma_cq_get_wc(cq, 1, &wc, nullptr) == RPMA_E_NO_COMPLETION, "no completion is left");
    }
    if (kind == Kind::shared_channel) {
      must(rpma_cq_wait(cq_) == RPMA_E_SHARED_CHANNEL, "a channel that is shared");
    }
  }

  rpma_conn* conn() { return conn_.get(); }

  const Kind kind;
  Memory shown;
  Memory own;
  Memory inbox;
  RemoteRegion theirs;
  std::string other_side;

 private:
  ibv_wc next(rpma_cq* cq) {
    ibv_wc wc{};
    for (;;) {
      int n = 0;
      const int result = rpma_cq_get_wc(cq, 1, &wc, &n);
      if (result == 0) {
        must(n == 1, "one completion");
        return wc;
      }
      must(result == RPMA_E_NO_COMPLETION, rpma_err_2str(result));
      if (kind != Kind::shared_channel) {
        ok(rpma_cq_wait(cq), "rpma_cq_wait");
        continue;
      }
      rpma_cq* told = nullptr;
      bool is_rcq = false;
      ok(rpma_conn_wait(conn(), 0, &told, &is_rcq), "rpma_conn_wait");
      must(told == (is_rcq ? rcq_ : cq_), "the queue that a shared channel tells of");
    }
  }

  ConnectionConfig config_;
  Card card_;
  PeerConfig their_config_;
  Connection conn_;
  rpma_cq* cq_ = nullptr;
  rpma_cq* rcq_ = nullptr;
};

}  // namespace aperture::test
