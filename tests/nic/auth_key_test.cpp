// Authorization keys at first contact: who cannot prove that it holds the key of an endpoint gets
// no lane, at either side. The numbers are those of the project's list of hostile inputs.
#include <sys/uio.h>

#include <cstdio>
#include <fstream>
#include <functional>

#include "nic/proof.hpp"
#include "nic/raw_client.hpp"
#include "nic/side.hpp"

namespace aperture::nic::test {
namespace {

using wire::Why;

// Made bit by bit, so that the text itself lies nowhere in this program.
std::shared_ptr<const Secret> key_of(uint8_t seed, size_t size = 32) {
  std::vector<uint8_t> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<uint8_t>(seed * 31 + i * 7);
  auto made = Secret::copy_of(bytes);
  explicit_bzero(bytes.data(), bytes.size());
  EXPECT_TRUE(made.ok());
  return std::make_shared<Secret>(*std::move(made));
}

void expect_refused(Side& from, Side& to) {
  from.connect(to);
  EXPECT_EQ(from.failure(), Errc::access_denied);
  EXPECT_TRUE(to.silent(20));
}

TEST(AuthKey, endpoints_with_the_same_key_get_a_lane) {
  for (const size_t size : {1, 16, 200}) {
    Side a(1, loopback_v4(), key_of(1, size));
    Side b(1, loopback_v4(), key_of(1, size));
    join_and_part(a, b);
  }
}

TEST(AuthKey, endpoints_with_different_keys_get_none) {
  Side a(1, loopback_v4(), key_of(1));
  Side b(1, loopback_v4(), key_of(2));
  expect_refused(a, b);
  expect_refused(b, a);
  Side same(1, loopback_v4(), key_of(1));
  join_and_part(same, a);
}

TEST(AuthKey, a_part_of_the_key_is_another_key) {
  Side a(1, loopback_v4(), key_of(1, 32));
  Side b(1, loopback_v4(), key_of(1, 31));
  expect_refused(a, b);
  expect_refused(b, a);
}

TEST(AuthKey, an_endpoint_without_one_and_an_endpoint_with_one_get_none) {
  Side with(1, loopback_v4(), key_of(1));
  Side without;
  expect_refused(with, without);
  expect_refused(without, with);
  Side another;
  join_and_part(another, without);
}

TEST(AuthKey, crossing_connects_with_different_keys_both_end) {
  Side a(1, loopback_v4(), key_of(1));
  Side b(1, loopback_v4(), key_of(2));
  a.connect(b);
  b.connect(a);
  EXPECT_EQ(a.failure(), Errc::access_denied);
  EXPECT_EQ(b.failure(), Errc::access_denied);
}

// A handshake by hand, up to what would be said in Open.
struct Handshake {
  RawClient client;
  wire::Open open;
  wire::Statement statement;

  explicit Handshake(const Side& victim) : client(victim.address()) {
    EXPECT_TRUE(client.enter());
    open = client.good_open();
    statement = {{client.hello.nonce, client.hello.incarnation, client.hello.source},
                 {client.answer.nonce, client.answer.incarnation, client.hello.destination},
                 client.answer.ticket};
  }
  Why refusal() { return client.refusal(open); }
};

// What comes of a handshake by hand: its lane at the victim.
void expect_accepted(Handshake& h, Side& victim) {
  const auto said = h.client.open(h.open, {sealed_segment(), doorbell()});
  ASSERT_TRUE(said && said->accepted);
  ASSERT_TRUE(victim.lane());
}

TEST(AuthKey, hostile_5_a_connection_forged_with_the_right_nonce_is_refused) {
  const auto key = key_of(1);
  Side victim(1, loopback_v4(), key);
  {
    Handshake none(victim);
    EXPECT_EQ(none.refusal(), Why::wrong_key) << "no proof";
    EXPECT_EQ(none.refusal(), Why::bad_ticket) << "one try for each handshake";
  }
  {
    Handshake other(victim);
    other.open.proof = prove(key_of(2).get(), other.statement, wire::Who::connector);
    EXPECT_EQ(other.refusal(), Why::wrong_key) << "another key";
  }
  for (const int bit : {0, 7, 100, 255}) {
    Handshake forged(victim);
    forged.open.proof = prove(key.get(), forged.statement, wire::Who::connector);
    forged.open.proof[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_EQ(forged.refusal(), Why::wrong_key) << "bit " << bit;
  }
  {
    Handshake reflected(victim);
    reflected.open.proof = prove(key.get(), reflected.statement, wire::Who::acceptor);
    EXPECT_EQ(reflected.refusal(), Why::wrong_key) << "what the other side would say";
  }
  EXPECT_TRUE(victim.silent(20));
  Handshake good(victim);
  good.open.proof = prove(key.get(), good.statement, wire::Who::connector);
  expect_accepted(good, victim);
}

TEST(AuthKey, hostile_41_a_truncated_proof_is_refused) {
  const auto key = key_of(1);
  Side victim(1, loopback_v4(), key);
  for (const size_t kept : {1, 16, 31}) {
    Handshake cut(victim);
    cut.open.proof = prove(key.get(), cut.statement, wire::Who::connector);
    std::fill(cut.open.proof.begin() + static_cast<std::ptrdiff_t>(kept), cut.open.proof.end(),
              std::byte{0});
    EXPECT_EQ(cut.refusal(), Why::wrong_key) << kept << " bytes";
  }
  for (const size_t size : {104, 120, 135}) {  // not even a message
    Handshake cut(victim);
    cut.open.proof = prove(key.get(), cut.statement, wire::Who::connector);
    const auto packet = wire::encode(cut.open);
    const std::vector<int> fds{sealed_segment(), doorbell()};
    ASSERT_TRUE(send_packet(cut.client.unix_socket.get(), packet.view().first(size), fds).ok());
    EXPECT_TRUE(closed_by_peer(cut.client.unix_socket.get())) << size << " bytes";
  }
  EXPECT_TRUE(victim.silent(20));
}

TEST(AuthKey, hostile_41_a_replayed_proof_is_refused) {
  const auto key = key_of(1);
  Side victim(1, loopback_v4(), key);
  Handshake first(victim);
  first.open.proof = prove(key.get(), first.statement, wire::Who::connector);
  const wire::Proof overheard = first.open.proof;
  expect_accepted(first, victim);
  EXPECT_EQ(first.refusal(), Why::bad_ticket) << "the very same message once more";
  for (int i = 0; i < 3; ++i) {
    Handshake replay(victim);
    replay.client.hello.nonce = first.client.hello.nonce;
    replay.open.proof = overheard;
    EXPECT_EQ(replay.refusal(), Why::wrong_key);
  }
  // nor at another endpoint of the same process with the same key
  Side sibling(1, loopback_v4(), key);
  Handshake elsewhere(sibling);
  elsewhere.open.proof = overheard;
  EXPECT_EQ(elsewhere.refusal(), Why::wrong_key);
}

// An endpoint by hand, which accepts whoever comes and says that proof.
class Accepting : public Impostor {
 public:
  // Serves one handshake, up to Accept.
  template <typename MakeProof>
  bool serve(MakeProof make_proof) {
    const ParentOnlyFd tcp = accept();
    const wire::Hello hello = hear(tcp.get());
    const wire::Answer answer = offer_to(hello);
    auto door = listen_abstract(answer.socket_name);
    if (!door || !send_bytes(tcp.get(), wire::encode(answer))) return false;
    if (!readable(door->get())) return false;
    auto socket = accept_one(door->get());
    if (!socket) return false;
    EXPECT_TRUE(allow_descriptors(socket->get()).ok());
    Packet packet;
    if (!readable(socket->get()) || !receive_packet(socket->get(), packet)) return false;
    wire::Join joined;
    joined.nonce = hello.nonce;
    joined.incarnation = answer.incarnation;
    if (!send_packet(socket->get(), wire::encode_joined(joined).view(), {})) return false;
    if (!readable(socket->get()) || !receive_packet(socket->get(), packet)) return false;
    const auto open = wire::decode_open(packet.view());
    if (!open) return false;
    wire::Accept said;
    said.attempt = open.value().attempt;
    said.engine = Wild<uint64_t>(1);
    said.proof = make_proof(open.value(),
                            wire::Statement{{hello.nonce, hello.incarnation, hello.source},
                                            {answer.nonce, answer.incarnation, hello.destination},
                                            answer.ticket});
    const std::vector<int> fds{doorbell()};
    if (!send_packet(socket->get(), wire::encode(said).view(), fds)) return false;
    // the connector tells that it has closed the lane again, or nothing while it uses it
    closed_ = readable(socket->get(), 300) && receive_packet(socket->get(), packet).ok() &&
              wire::decode_lane_close(packet.view()).ok();
    return true;
  }
  bool lane_was_closed() const { return closed_; }

 private:
  bool closed_ = false;
};

TEST(AuthKey, hostile_41_who_accepts_without_holding_the_key_gets_no_lane) {
  const auto key = key_of(1);
  using Make = std::function<wire::Proof(const wire::Open&, const wire::Statement&)>;
  const std::vector<Make> lies = {
      [](const wire::Open&, const wire::Statement&) { return wire::Proof{}; },
      [](const wire::Open& open, const wire::Statement&) { return open.proof; },
      [](const wire::Open&, const wire::Statement& s) {
        return prove(key_of(2).get(), s, wire::Who::acceptor);
      },
      [&](const wire::Open&, wire::Statement s) {
        s.connector.nonce[0] ^= 1;  // of another handshake
        return prove(key.get(), s, wire::Who::acceptor);
      },
  };
  for (size_t i = 0; i < lies.size(); ++i) {
    Side victim(1, loopback_v4(), key);
    Accepting impostor;
    victim.connect(impostor.address);
    ASSERT_TRUE(impostor.serve(lies[i])) << i;
    EXPECT_EQ(victim.failure(), Errc::access_denied) << i;
    EXPECT_TRUE(impostor.lane_was_closed()) << i;
  }
  Side victim(1, loopback_v4(), key);
  Accepting honest;
  victim.connect(honest.address);
  ASSERT_TRUE(honest.serve([&](const wire::Open&, const wire::Statement& s) {
    return prove(key.get(), s, wire::Who::acceptor);
  }));
  EXPECT_FALSE(honest.lane_was_closed());
  ASSERT_TRUE(victim.lane());
}

TEST(AuthKey, hostile_41_who_claims_a_key_where_none_is_held_is_refused) {
  Side victim;
  Handshake claims(victim);
  claims.open.proof[31] = std::byte{1};
  EXPECT_EQ(claims.refusal(), Why::wrong_key);
  Handshake plain(victim);
  expect_accepted(plain, victim);
}

// The memory of this process that a core dump would take: what is readable, present, and not
// exempted.
struct Dumped {
  uintptr_t from = 0;
  uintptr_t to = 0;
};
std::vector<Dumped> dumped_memory() {
  std::vector<Dumped> all;
  std::ifstream smaps("/proc/self/smaps");
  Dumped next;
  bool is_readable = false;
  for (std::string line; std::getline(smaps, line);) {
    unsigned long from = 0;
    unsigned long to = 0;
    char mode[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &from, &to, mode) == 3) {
      next = {from, to};
      is_readable = mode[0] == 'r';
    } else if (line.rfind("VmFlags:", 0) == 0) {
      if (is_readable && (line + " ").find(" dd ") == std::string::npos) all.push_back(next);
    }
  }
  return all;
}

// Reading what was never touched would bring it into being: a key table has room for millions.
bool is_present(int pagemap, uintptr_t page) {
  uint64_t word = 0;
  const auto at = static_cast<off_t>(page / 4096 * sizeof word);
  return ::pread(pagemap, &word, sizeof word, at) == sizeof word && (word >> 62) != 0;
}

// How often bytes that equal `masked` xor 0x5a lie there.
size_t copies_in_a_dump(const std::vector<uint8_t>& masked) {
  const UniqueFd pagemap(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  EXPECT_TRUE(pagemap);
  size_t found = 0;
  std::vector<uint8_t> bytes(masked.size() + 4096);  // the end of the last page, and a page
  for (const Dumped& m : dumped_memory()) {
    size_t kept = 0;
    for (uintptr_t at = m.from; at < m.to; at += 4096) {
      if (!is_present(pagemap.get(), at)) {
        kept = 0;
        continue;
      }
      const iovec local{bytes.data() + kept, 4096};
      const iovec remote{reinterpret_cast<void*>(at), 4096};
      if (::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0) != 4096) continue;
      const size_t n = kept + 4096;
      for (size_t i = 0; i + masked.size() <= n; ++i) {
        size_t same = 0;
        while (same < masked.size() && (bytes[i + same] ^ 0x5a) == masked[same]) ++same;
        if (same == masked.size()) ++found;
      }
      kept = std::min(n, masked.size() - 1);
      std::memmove(bytes.data(), bytes.data() + n - kept, kept);
      explicit_bzero(bytes.data() + kept, bytes.size() - kept);
    }
  }
  return found;
}

TEST(AuthKey, hostile_41_a_key_is_in_no_core_dump) {
  constexpr size_t kSize = 40;
  const auto key = key_of(77, kSize);
  std::vector<uint8_t> masked(kSize);
  for (size_t i = 0; i < kSize; ++i) masked[i] = key->bytes()[i] ^ 0x5a;
  Side a(1, loopback_v4(), key);
  Side b(1, loopback_v4(), key);
  Side stranger(1, loopback_v4(), key_of(78));
  join_and_part(a, b);
  expect_refused(stranger, a);
  EXPECT_EQ(copies_in_a_dump(masked), 0u);
  // and the search does find what a dump would hold
  std::vector<uint8_t> plain(kSize);
  for (size_t i = 0; i < kSize; ++i) {
    masked[i] ^= 0x33;
    plain[i] = masked[i] ^ 0x5a;
  }
  EXPECT_GE(copies_in_a_dump(masked), 1u);
}

}  // namespace
}  // namespace aperture::nic::test
