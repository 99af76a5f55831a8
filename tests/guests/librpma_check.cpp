// Remote memory and messages through librpma, checked: both sides of several connections in turn.
//
//   librpma_check server|client ADDRESS PORT ROUNDS
//
// Each connection is of another kind, and both sides go through the same list of them.
#include <netinet/in.h>
#include <sched.h>

#include <atomic>

#include "guests/librpma_link.hpp"

using namespace aperture::test;  // NOLINT: a program of its own

namespace {

constexpr Kind kKinds[] = {Kind::one_queue, Kind::receive_queue,   Kind::shared_channel,
                           Kind::read_only, Kind::read_beyond_end, Kind::refused,
                           Kind::one_queue};

// The second half of what a side shows: a block, a log of entries, and how many of them are there.
constexpr size_t kBlock = 1 << 18;
constexpr size_t kLog = kHalf + kBlock;
constexpr size_t kUsed = kShown - 8;
constexpr size_t kEntry = 64;
constexpr uint64_t kEntries = 300;
constexpr uint32_t kWrittenImm = 0xfedcba98, kAnsweredImm = 0x01234567;
constexpr int kAlways = RPMA_F_COMPLETION_ALWAYS, kOnError = RPMA_F_COMPLETION_ON_ERROR;

void has_imm(const ibv_wc& wc, ibv_wc_opcode opcode, uint32_t imm) {
  must(wc.opcode == opcode, "the opcode of a receive");
  must((wc.wc_flags & IBV_WC_WITH_IMM) != 0 && ntohl(wc.imm_data) == imm, "the immediate data");
}

void flush(Link& link, size_t at, size_t n, rpma_flush_type type) {
  ok(rpma_flush(link.conn(), link.theirs.get(), at, n, type, kAlways, &link.theirs), "rpma_flush");
  link.completed(&link.theirs);  // and nothing else: the writes before it tell of errors alone
}

void write_block(Link& link) {
  fill(link.own.bytes, kBlock, side);
  ok(rpma_write(link.conn(), link.theirs.get(), kHalf, link.own.region.get(), 0, kBlock, kOnError,
                nullptr),
     "rpma_write");
}

// --- the client's part ---------------------------------------------------------------------------

void read_and_write(Link& link) {
  rpma_conn* conn = link.conn();
  rpma_mr_remote* theirs = link.theirs.get();
  ok(rpma_read(conn, link.own.region.get(), 0, theirs, 0, kHalf, kAlways, &link), "rpma_read");
  link.completed(&link);
  must(is_filled(link.own.bytes, kHalf, "server"), "what was read");

  write_block(link);
  flush(link, kHalf, kBlock, RPMA_FLUSH_TYPE_VISIBILITY);
  must(rpma_flush(conn, theirs, kHalf, kBlock, RPMA_FLUSH_TYPE_PERSISTENT, kAlways, &link) ==
           RPMA_E_NOSUPP,
       "no flush to persistence before the other side is known to allow it");
  link.may_flush_to_persistence();
  flush(link, kHalf, kBlock, RPMA_FLUSH_TYPE_PERSISTENT);
  ok(rpma_write_with_imm(conn, theirs, kHalf, link.own.region.get(), 0, 16, kAlways, kWrittenImm,
                         &link),
     "rpma_write_with_imm");
  link.completed(&link);

  uint64_t value = 0;
  has_imm(link.receive(value), IBV_WC_RECV, kAnsweredImm);
  must(value == kBlock, "the message beside immediate data");
  must(is_filled(link.shown.bytes + kHalf, kBlock, "server"), "what the server wrote");
}

void fill_entry(unsigned char* at, uint64_t i) {
  const std::string text = "entry " + std::to_string(i);
  fill(at, kEntry, text.c_str() + 6);
  std::memcpy(at, text.data(), text.size());
}

// Each is flushed before the word says that it is there. Of those with an even number the flush is
// waited for; with an odd one it is up to the atomic write to stay behind it.
void append(Link& link) {
  must(rpma_atomic_write(link.conn(), link.theirs.get(), kUsed + 4, "unalign", kAlways, &link) ==
           RPMA_E_INVAL,
       "no atomic write to a place that is not aligned");
  for (uint64_t i = 0; i < kEntries; ++i) {
    const size_t at = kLog + i * kEntry;
    const bool waits = i % 2 == 0;
    fill_entry(link.own.bytes, i);
    ok(rpma_write(link.conn(), link.theirs.get(), at, link.own.region.get(), 0, kEntry, kOnError,
                  nullptr),
       "rpma_write of an entry");
    ok(rpma_flush(link.conn(), link.theirs.get(), at, kEntry,
                  i % 3 == 0 ? RPMA_FLUSH_TYPE_VISIBILITY : RPMA_FLUSH_TYPE_PERSISTENT,
                  waits ? kAlways : kOnError, &link.theirs),
       "rpma_flush of an entry");
    if (waits) link.completed(&link.theirs);
    char used[8];
    const uint64_t n = i + 1;
    std::memcpy(used, &n, sizeof used);
    ok(rpma_atomic_write(link.conn(), link.theirs.get(), kUsed, used, kAlways, &used),
       "rpma_atomic_write");
    link.completed(&used);
  }
}

void ping(Link& link, uint64_t rounds) {
  uint64_t value = 0;
  for (uint64_t i = 0; i < rounds; ++i) {
    link.send(i * 2);
    const ibv_wc wc = link.receive(value);
    must(wc.opcode == IBV_WC_RECV && wc.byte_len == 8 && value == i * 2 + 1, "an answer");
  }
  ok(rpma_send(link.conn(), nullptr, 0, 0, kAlways, &link), "rpma_send of no bytes");
  link.completed(&link);
  must(link.receive(value).byte_len == 8 && value == 0, "the answer to a message of no bytes");
}

void be_refused_access(Link& link) {
  rpma_mr_remote* theirs = link.theirs.get();
  if (link.kind == Kind::read_only) {
    must(rpma_flush(link.conn(), theirs, 0, 8, RPMA_FLUSH_TYPE_VISIBILITY, kAlways, &link) ==
             RPMA_E_NOSUPP,
         "no flush of memory that was registered without");
    ok(rpma_write(link.conn(), theirs, kHalf, link.own.region.get(), 0, 8, kOnError, &link),
       "rpma_write to memory that cannot be written");
  } else {
    ok(rpma_read(link.conn(), link.own.region.get(), 0, theirs, kShown - 8, 16, kOnError, &link),
       "rpma_read past the end");
  }
  link.completed(&link, IBV_WC_REM_ACCESS_ERR);
}

void be_client(rpma_peer* peer, const char* address, const char* port, uint64_t rounds) {
  for (const Kind kind : kKinds) {
    Link link(peer, kind);
    rpma_conn_req* request = nullptr;
    ok(rpma_conn_req_new(peer, address, port, link.config(), &request), "rpma_conn_req_new");
    link.connect(request);
    if (kind == Kind::refused) continue;
    link.know_by_connection();
    if (kind == Kind::read_only || kind == Kind::read_beyond_end) {
      be_refused_access(link);
    } else {
      read_and_write(link);
      append(link);
      ping(link, rounds);
      link.nothing_is_left();
    }
    ok(rpma_conn_disconnect(link.conn()), "rpma_conn_disconnect");
    link.await(RPMA_CONN_CLOSED);
  }
}

// --- the server's part ---------------------------------------------------------------------------

void answer_writes(Link& link) {
  uint64_t value = 0;
  has_imm(link.receive(value), IBV_WC_RECV_RDMA_WITH_IMM, kWrittenImm);
  must(is_filled(link.shown.bytes + kHalf, kBlock, "client"), "what the client wrote");
  write_block(link);
  flush(link, kHalf, kBlock, RPMA_FLUSH_TYPE_VISIBILITY);
  link.own.word(0) = kBlock;
  ok(rpma_send_with_imm(link.conn(), link.own.region.get(), 0, 8, kAlways, kAnsweredImm, &link),
     "rpma_send_with_imm");
  link.completed(&link);
}

// Looks at the memory alone while the client writes to it.
void watch_entries(Link& link) {
  unsigned char expected[kEntry];
  const std::atomic_ref<uint64_t> used(link.shown.word(kUsed));
  for (uint64_t seen = 0; seen < kEntries;) {
    const uint64_t n = used.load(std::memory_order_acquire);
    must(n >= seen && n <= kEntries, "the count of entries");
    for (; seen < n; ++seen) {
      fill_entry(expected, seen);
      must(std::memcmp(link.shown.bytes + kLog + seen * kEntry, expected, kEntry) == 0,
           "an entry is there when the word says so");
    }
    ::sched_yield();
  }
}

void answer(Link& link, uint64_t rounds) {
  uint64_t value = 0;
  for (uint64_t i = 0; i < rounds; ++i) {
    link.receive(value);
    must(value == i * 2, "a message");
    link.send(value + 1);
  }
  must(link.receive(value).byte_len == 0, "a message of no bytes");
  link.send(0);
}

void serve(Link& link, uint64_t rounds) {
  if (link.kind == Kind::read_only || link.kind == Kind::read_beyond_end) {
    link.await(RPMA_CONN_CLOSED);
    for (size_t i = kHalf; i < kShown; ++i) {
      must(link.shown.bytes[i] == 0, "nothing was written where it is not allowed");
    }
    return;
  }
  answer_writes(link);
  watch_entries(link);
  answer(link, rounds);
  link.await(RPMA_CONN_CLOSED);
}

void be_server(rpma_peer* peer, const char* address, const char* port, uint64_t rounds) {
  rpma_ep* made = nullptr;
  ok(rpma_ep_listen(peer, address, port, &made), "rpma_ep_listen");
  const Endpoint endpoint(made);
  for (const Kind kind : kKinds) {
    Link link(peer, kind);
    rpma_conn_req* request = nullptr;
    ok(rpma_ep_next_conn_req(made, link.config(), &request), "rpma_ep_next_conn_req");
    rpma_conn_private_data data{};
    ok(rpma_conn_req_get_private_data(request, &data), "rpma_conn_req_get_private_data");
    link.know(data);
    if (kind == Kind::refused) {
      ok(rpma_conn_req_delete(&request), "rpma_conn_req_delete");
      continue;
    }
    link.connect(request);
    serve(link, rounds);
    ok(rpma_conn_disconnect(link.conn()), "rpma_conn_disconnect");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const bool is_server = std::strcmp(argv[1], "server") == 0;
  side = is_server ? "server" : "client";
  ibv_context* context = nullptr;
  ok(rpma_utils_get_ibv_context(
         argv[2], is_server ? RPMA_UTIL_IBV_CONTEXT_LOCAL : RPMA_UTIL_IBV_CONTEXT_REMOTE, &context),
     "rpma_utils_get_ibv_context");
  rpma_peer* made = nullptr;
  ok(rpma_peer_new(context, &made), "rpma_peer_new");
  const Peer peer(made);
  const auto rounds = static_cast<uint64_t>(std::atoll(argv[4]));
  (is_server ? be_server : be_client)(made, argv[2], argv[3], rounds);
  std::printf("librpma_check: ok\n");
  return 0;
}
