// The short way of short requests leads where the long one does. The first message of a connection
// goes the long way; each case here is once that message and once the second, and must end alike:
// completions, events, states and memory of both sides.
#include <sstream>

#include "ib/pair.hpp"

namespace aperture::ib::test {
namespace {

constexpr size_t kMemory = 4096;
constexpr size_t kFrom = 0, kInto = 1024, kOther = 2048;  // in the memory of either side

struct Case {
  const char* name;
  std::function<void(Pair&)> run;  // posts; the short request is the requester's (a), with id 1
  Options options{};
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

Status post_inline(Side& from, SendOp op, size_t len, uint64_t remote = 0, uint32_t rkey = 0,
                   uint32_t flags = 0) {
  SendWr wr = Side::work(op, 1, remote, rkey);
  wr.flags |= kInline | flags;
  wr.imm = 0x01020304;
  const Sge sge = from.sge(kFrom, len);
  wr.sge = &sge;
  wr.sge_count = 1;
  return from.qp->post_send(wr);
}

void receive(Side& side, const Sge* pieces, uint32_t count) {
  ASSERT_TRUE(side.qp->post_recv({7, pieces, count}));
}
void receive(Side& side, size_t len) {
  const Sge sge = side.sge(kInto, len);
  receive(side, &sge, 1);
}
void receive_by_key(Side& side, uint64_t key, size_t at, size_t len) {
  const Sge sge{side.address(at), static_cast<uint32_t>(len), static_cast<uint32_t>(key)};
  receive(side, &sge, 1);
}

std::string text_of(Cq& cq) {
  std::ostringstream out;
  for (; !cq.empty(); cq.pop()) {
    const Wc& wc = cq.front();
    out << " {id " << wc.id << " status " << static_cast<int>(wc.status) << " opcode "
        << static_cast<int>(wc.opcode) << " len " << wc.byte_len << " imm " << wc.imm << " qpn "
        << wc.qpn << " src " << wc.src_qpn << " vendor " << wc.vendor_err << " flags "
        << static_cast<int>(wc.flags) << " solicited " << wc.solicited << "}";
  }
  return out.str();
}

std::string text_of(const char* name, Side& side) {
  std::ostringstream out;
  out << name << " state " << static_cast<int>(side.qp->state()) << "\n  sent"
      << text_of(side.send_cq) << "\n  received" << text_of(side.recv_cq) << "\n  events";
  for (const AsyncEvent event : side.events.async) out << ' ' << static_cast<int>(event);
  out << "\n  completion events " << side.events.completions << ", overruns "
      << side.events.overruns << "\n  memory";
  for (size_t at = 0; at < side.memory.size(); ++at) {
    if (side.memory[at] != std::byte{0}) out << ' ' << at << ':' << int(side.memory[at]);
  }
  out << '\n';
  return out.str();
}

// How it ends; after_another: as the second message of its connection.
std::string end_of(const Case& c, LinkKind kind, bool after_another) {
  Pair p(kind, c.options, c.options, kMemory);
  p.connect();
  if (after_another) {
    receive(*p.b, 8);
    EXPECT_TRUE(post_inline(*p.a, SendOp::send, 8));
    EXPECT_TRUE(p.until([&] { return p.a->send_cq.size() == 1 && p.b->recv_cq.size() == 1; }));
    (void)text_of(p.a->send_cq);
    (void)text_of(p.b->recv_cq);
  }
  p.a->fill(kFrom, pattern(64, 3));
  std::fill(p.b->memory.begin(), p.b->memory.end(), std::byte{0});
  c.run(p);
  p.settle();
  return text_of("requester", *p.a) + text_of("responder", *p.b);
}

const uint64_t kUnused = 0x7777'7777;

Case sending(const char* name, size_t len, std::function<void(Pair&)> receiving,
             SendOp op = SendOp::send, uint32_t flags = 0) {
  return {name, [=](Pair& p) {
            receiving(p);
            ASSERT_TRUE(post_inline(*p.a, op, len, 0, 0, flags));
          }};
}
Case writing(const char* name, SendOp op, size_t len, std::function<uint64_t(Pair&)> key,
             size_t at = kInto, bool receives = true) {
  return {
      name, [=](Pair& p) {
        if (receives) receive(*p.b, 64);
        ASSERT_TRUE(post_inline(*p.a, op, len, p.b->address(at), static_cast<uint32_t>(key(p))));
      }};
}
uint64_t whole(Pair& p) {
  return p.b->key();
}
uint64_t with_rights(Pair& p, Rights rights) {
  return p.b->add(p.b->memory.data(), kMemory, rights).key;
}

Case with(Case c, const std::function<void(Options&)>& change) {
  change(c.options);
  return c;
}

std::vector<Case> sends_that_arrive() {
  const auto plain = [](Pair& p) { receive(*p.b, 64); };
  return {
      sending("a_send", 8, plain),
      sending("a_send_of_nothing", 0, plain),
      sending("a_send_that_fills_its_cell", 48, plain),
      sending("a_send_of_two_cells", 64, plain),
      sending("a_solicited_send", 8, plain, SendOp::send, kSolicited),
      sending("a_send_with_immediate_data", 8, plain, SendOp::send_with_imm),
      sending("a_send_that_fits_exactly", 8, [](Pair& p) { receive(*p.b, 8); }),
      sending("a_send_into_two_pieces", 8,
              [](Pair& p) {
                const Sge two[] = {p.b->sge(kInto, 3), p.b->sge(kOther, 60)};
                receive(*p.b, two, 2);
              }),
      sending("a_send_into_the_null_key", 8,
              [](Pair& p) { receive_by_key(*p.b, kNullLkey, kInto, 64); }),
      {"a_send_whose_receive_comes_late",
       [](Pair& p) {
         ASSERT_TRUE(post_inline(*p.a, SendOp::send, 8));
         p.settle();
         receive(*p.b, 64);
       }},
      {"a_send_that_rings",
       [](Pair& p) {
         receive(*p.b, 64);
         receive(*p.b, 64);
         p.b->recv_cq.arm(true);
         ASSERT_TRUE(post_inline(*p.a, SendOp::send, 8));
         p.settle();
         ASSERT_TRUE(post_inline(*p.a, SendOp::send, 8, 0, 0, kSolicited));
       }},
  };
}

std::vector<Case> sends_that_fail() {
  return {
      sending("a_send_one_byte_too_long", 8, [](Pair& p) { receive(*p.b, 7); }),
      sending("a_send_into_no_piece", 8, [](Pair& p) { receive(*p.b, nullptr, 0); }),
      sending("a_send_into_an_unknown_key", 8,
              [](Pair& p) { receive_by_key(*p.b, kUnused, kInto, 64); }),
      sending("a_send_into_what_may_not_be_written", 8,
              [](Pair& p) { receive_by_key(*p.b, with_rights(p, Rights::local_read), kInto, 64); }),
      sending("a_send_past_the_end_of_its_region", 8,
              [](Pair& p) { receive_by_key(*p.b, p.b->key(), kMemory - 7, 64); }),
      sending("a_send_into_a_closed_region", 8,
              [](Pair& p) {
                const protect::RegionHandle r = p.b->add(p.b->memory.data(), kMemory, kEverything);
                receive_by_key(*p.b, r.key, kInto, 64);
                ASSERT_TRUE(p.lanes.keys->revoke(r, now_ns() + 1'000'000'000));
              }),
      sending("a_send_into_memory_that_is_not_there", 8,
              [](Pair& p) {
                auto* nowhere = reinterpret_cast<void*>(uintptr_t{1} << 46);
                const uint64_t key = p.b->add(nowhere, 64, kEverything).key;
                const Sge sge{uint64_t{1} << 46, 64, static_cast<uint32_t>(key)};
                receive(*p.b, &sge, 1);
              }),
      with(sending("a_send_without_a_receive", 8, [](Pair&) {}),
           [](Options& o) { o.rnr_retry = 0; }),
      with({"a_send_whose_completion_finds_no_room",
            [](Pair& p) {
              for (int i = 0; i < 3; ++i) {
                receive(*p.b, 64);
                ASSERT_TRUE(post_inline(*p.a, SendOp::send, 8));
              }
            }},
           [](Options& o) { o.cq_entries = 2, o.sig_all = false; }),
      {"a_send_to_one_that_has_failed",
       [](Pair& p) {
         receive(*p.b, 64);
         p.b->qp->fail();
         ASSERT_TRUE(post_inline(*p.a, SendOp::send, 8));
       }},
  };
}

std::vector<Case> writes() {
  std::vector<Case> all = {
      writing("a_write", SendOp::write, 8, whole),
      writing("a_write_that_fills_its_cell", SendOp::write, 36, whole),
      writing("a_write_of_two_cells", SendOp::write, 64, whole),
      writing("a_write_with_immediate_data", SendOp::write_with_imm, 8, whole),
      writing("a_write_with_immediate_data_alone", SendOp::write_with_imm, 0, whole),
      with(writing("a_write_with_immediate_data_and_no_receive", SendOp::write_with_imm, 8, whole,
                   kInto, false),
           [](Options& o) { o.rnr_retry = 0; }),
  };
  for (const SendOp op : {SendOp::write, SendOp::write_with_imm}) {
    const bool imm = op == SendOp::write_with_imm;
    all.push_back(
        writing(imm ? "an_imm_past_the_end" : "a_write_past_the_end", op, 8, whole, kMemory - 7));
    all.push_back(writing(imm ? "an_imm_with_an_unknown_key" : "a_write_with_an_unknown_key", op, 8,
                          [](Pair&) { return kUnused; }));
    all.push_back(
        writing(imm ? "an_imm_into_what_may_only_be_read" : "a_write_into_what_may_only_be_read",
                op, 8, [](Pair& p) { return with_rights(p, kLocal | Rights::remote_read); }));
    all.push_back(with(
        writing(imm ? "an_imm_that_is_not_allowed" : "a_write_that_is_not_allowed", op, 8, whole),
        [](Options& o) { o.access = kAllowRemoteRead; }));
    all.push_back(writing(imm ? "an_imm_into_a_closed_region" : "a_write_into_a_closed_region", op,
                          8, [](Pair& p) {
                            const auto r = p.b->add(p.b->memory.data(), kMemory, kEverything);
                            EXPECT_TRUE(p.lanes.keys->revoke(r, now_ns() + 1'000'000'000));
                            return r.key;
                          }));
  }
  return all;
}

std::vector<Case> cases() {
  std::vector<Case> all = sends_that_arrive();
  for (const auto& more : {sends_that_fail(), writes()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

class AtOnce : public testing::TestWithParam<std::tuple<LinkKind, Case>> {};
INSTANTIATE_TEST_SUITE_P(Links, AtOnce,
                         testing::Combine(testing::Values(LinkKind::loopback, LinkKind::shm,
                                                          LinkKind::direct),
                                          testing::ValuesIn(cases())),
                         [](const auto& given) {
                           return std::string(name_of(std::get<0>(given.param))) + "_" +
                                  std::get<1>(given.param).name;
                         });

TEST_P(AtOnce, ends_as_the_long_way_does) {
  const auto& [kind, c] = GetParam();
  const std::string first = end_of(c, kind, false);
  const std::string second = end_of(c, kind, true);
  EXPECT_EQ(second, first);
  EXPECT_NE(first.find("{id"), std::string::npos) << "something must have ended:\n" << first;
}

}  // namespace
}  // namespace aperture::ib::test
