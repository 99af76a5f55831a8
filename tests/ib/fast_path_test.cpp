// The fast path of short requests ends as the slow one does. The first message of a connection
// takes the slow path; each case here is once that message and once the second, and must end alike:
// completions, events, states and memory of both sides. Reads and writes that are done directly
// must end as those that the owner executes.
#include <iomanip>
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
  return from.post(wr, {from.sge(kFrom, len)});
}

void receive(Side& side, std::initializer_list<Sge> pieces) {
  ASSERT_TRUE(side.post_recv(7, pieces));
}
void receive(Side& side, size_t len) {
  receive(side, {side.sge(kInto, len)});
}
void receive_by_key(Side& side, uint64_t key, size_t at, size_t len) {
  receive(side, {{side.address(at), static_cast<uint32_t>(len), static_cast<uint32_t>(key)}});
}

std::string text_of(CompletionQueue& cq) {
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
    if (side.memory[at] == std::byte{0}) continue;
    if (at == 0 || side.memory[at - 1] == std::byte{0}) out << ' ' << at << ':';
    out << std::hex << std::setw(2) << std::setfill('0') << int(side.memory[at]) << std::dec;
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

uint64_t closed_region(Pair& p) {
  const protect::RegionHandle r = p.b->add(p.b->memory.data(), kMemory, kEverything);
  EXPECT_TRUE(p.lanes.keys->revocation().revoke(r, now_ns() + 1'000'000'000));
  return r.key;
}

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
                receive(*p.b, {p.b->sge(kInto, 3), p.b->sge(kOther, 60)});
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
      sending("a_send_into_no_piece", 8, [](Pair& p) { receive(*p.b, {}); }),
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
                ASSERT_TRUE(p.lanes.keys->revocation().revoke(r, now_ns() + 1'000'000'000));
              }),
      sending("a_send_into_memory_that_is_not_there", 8,
              [](Pair& p) {
                auto* nowhere = reinterpret_cast<void*>(uintptr_t{1} << 46);
                const uint64_t key = p.b->add(nowhere, 64, kEverything).key;
                receive(*p.b, {{uint64_t{1} << 46, 64, static_cast<uint32_t>(key)}});
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
                          8, closed_region));
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

class FastPath : public testing::TestWithParam<std::tuple<LinkKind, Case>> {};
INSTANTIATE_TEST_SUITE_P(Links, FastPath, testing::Combine(kEachLink, testing::ValuesIn(cases())),
                         [](const auto& given) {
                           return std::string(name_of(std::get<0>(given.param))) + "_" +
                                  std::get<1>(given.param).name;
                         });

TEST_P(FastPath, ends_as_the_slow_path_does) {
  const auto& [kind, c] = GetParam();
  const std::string first = end_of(c, kind, false);
  const std::string second = end_of(c, kind, true);
  EXPECT_EQ(second, first);
  EXPECT_NE(first.find("{id"), std::string::npos) << "something must have ended:\n" << first;
}

// ---- directly -----------------------------------------------------------------------------------

// Reads and writes alone; the target looks at nothing until all is posted.
std::string end_of_rdma(const Case& c, LinkKind kind, size_t& ended) {
  Pair p(kind, c.options, c.options, kMemory);
  p.connect();
  if (kind == LinkKind::direct) p.b->qp->fall_asleep(ring::kUnnumbered);
  // the first takes the accessor slot, and takes the slow path
  EXPECT_TRUE(p.a->post(SendOp::read, 1, kOther, 8, p.b->address(), p.b->key()));
  EXPECT_TRUE(p.until([&] { return p.a->send_cq.size() == 1; }, true, kind != LinkKind::direct));
  (void)text_of(p.a->send_cq);
  p.a->fill(kFrom, pattern(1024, 3));
  p.b->fill(kFrom, pattern(1024, 5));
  c.run(p);
  ended = p.a->send_cq.size();
  p.settle();
  return text_of("requester", *p.a) + text_of("responder", *p.b);
}

Status post_by_key(Pair& p, SendOp op, const Sge& local, uint64_t remote, uint64_t rkey,
                   uint32_t flags = 0) {
  SendWr wr = Side::work(op, 1, remote, static_cast<uint32_t>(rkey));
  wr.flags |= flags;
  return p.a->post(wr, {local});
}

// Of each operation: from or into this place here, at that place there.
struct Places {
  Sge local;
  uint64_t remote;
  uint64_t rkey;
};
Places usual(Pair& p, size_t len) {
  return {p.a->sge(kFrom, len), p.b->address(kInto), p.b->key()};
}

using Arrange = std::function<void(Pair&, Places&)>;

void add_rdma(std::vector<Case>& all, const std::string& name, size_t len, const Arrange& arrange,
              const std::function<void(Options&)>& options = {}) {
  static std::vector<std::unique_ptr<std::string>> names;
  for (const SendOp op : {SendOp::read, SendOp::write}) {
    names.push_back(
        std::make_unique<std::string>((op == SendOp::read ? "a_read_" : "a_write_") + name));
    Case c{names.back()->c_str(), [=](Pair& p) {
             Places at = usual(p, len);
             if (arrange) arrange(p, at);
             // three: what comes after one that fails must end alike as well
             for (int i = 0; i < 3; ++i) {
               ASSERT_TRUE(post_by_key(p, op, at.local, at.remote, at.rkey));
             }
           }};
    if (options) options(c.options);
    all.push_back(c);
  }
}

std::vector<Case> rdma_that_is_done_directly() {
  std::vector<Case> all;
  add_rdma(all, "of_8_bytes", 8, {});
  add_rdma(all, "of_one_byte", 1, {});
  add_rdma(all, "of_1000_bytes", 1000, {});
  add_rdma(all, "of_the_last_byte", 1,
           [](Pair& p, Places& at) { at.remote = p.b->address(kMemory - 1); });
  all.push_back({"an_inline_write", [](Pair& p) {
                   ASSERT_TRUE(post_inline(*p.a, SendOp::write, 8, p.b->address(kInto),
                                           static_cast<uint32_t>(p.b->key())));
                 }});
  return all;
}

std::vector<Case> rdma_that_is_not() {
  std::vector<Case> all;
  add_rdma(all, "of_nothing", 0, {});
  add_rdma(all, "of_nothing_with_an_unknown_key", 0, [](Pair&, Places& at) { at.rkey = kUnused; });
  add_rdma(all, "past_the_end", 8,
           [](Pair& p, Places& at) { at.remote = p.b->address(kMemory - 7); });
  add_rdma(all, "before_the_beginning", 8,
           [](Pair& p, Places& at) { at.remote = p.b->address() - 1; });
  add_rdma(all, "with_an_unknown_key", 8, [](Pair&, Places& at) { at.rkey = kUnused; });
  add_rdma(all, "without_the_right", 8,
           [](Pair& p, Places& at) { at.rkey = with_rights(p, kLocal); });
  add_rdma(all, "that_the_queue_pair_forbids", 8,
           [](Pair& p, Places&) { p.b->qp->modify({}, kAttrAccessFlags); });
  add_rdma(all, "of_a_closed_region", 8, [](Pair& p, Places& at) { at.rkey = closed_region(p); });
  add_rdma(all, "of_memory_that_is_not_there", 8, [](Pair& p, Places& at) {
    at.remote = uint64_t{1} << 46;
    at.rkey = p.b->add(reinterpret_cast<void*>(at.remote), 64, kEverything).key;
  });
  add_rdma(all, "with_an_unknown_local_key", 8,
           [](Pair&, Places& at) { at.local.lkey = static_cast<uint32_t>(kUnused); });
  add_rdma(all, "without_the_local_right", 8, [](Pair& p, Places& at) {
    const auto r = p.a->add(p.a->memory.data(), kMemory, Rights::remote_read);
    at.local.lkey = static_cast<uint32_t>(r.key);
  });
  add_rdma(all, "past_the_local_end", 8,
           [](Pair& p, Places& at) { at.local.addr = p.a->address(kMemory - 7); });
  add_rdma(all, "with_the_null_key", 8, [](Pair&, Places& at) { at.local.lkey = kNullLkey; });
  add_rdma(all, "whose_completions_find_no_room", 8, {},
           [](Options& o) { o.cq_entries = 2, o.send_wrs = 8; });
  all.push_back({"a_read_where_none_is_allowed", [](Pair& p) {
                   p.a->qp->modify({}, kAttrMaxRdAtomic);
                   const Places at = usual(p, 8);
                   ASSERT_TRUE(post_by_key(p, SendOp::read, at.local, at.remote, at.rkey));
                 }});
  all.push_back({"an_inline_read", [](Pair& p) {
                   const Places at = usual(p, 8);
                   EXPECT_EQ(
                       post_by_key(p, SendOp::read, at.local, at.remote, at.rkey, kInline).error(),
                       Errc::invalid);
                   receive(*p.b, 8);
                   ASSERT_TRUE(post_inline(*p.a, SendOp::send, 8));
                 }});
  all.push_back({"an_inline_write_that_is_too_long", [](Pair& p) {
                   EXPECT_EQ(post_inline(*p.a, SendOp::write, 257, p.b->address(kInto),
                                         static_cast<uint32_t>(p.b->key()))
                                 .error(),
                             Errc::invalid);
                   receive(*p.b, 8);
                   ASSERT_TRUE(post_inline(*p.a, SendOp::send, 8));
                 }});
  return all;
}

std::vector<Case> ordered_rdma() {
  return {
      {"an_unsignaled_write_and_one_that_tells",
       [](Pair& p) {
         const Places at = usual(p, 8);
         SendWr wr = Side::work(SendOp::write, 1, at.remote, static_cast<uint32_t>(at.rkey));
         wr.flags = 0;
         ASSERT_TRUE(p.a->post(wr, {at.local}));
         ASSERT_TRUE(p.a->send_cq.empty());
         wr.id = 2;
         wr.flags = kSignaled;
         ASSERT_TRUE(p.a->post(wr, {at.local}));
       },
       {.sig_all = false}},
      {"a_write_behind_a_send",
       [](Pair& p) {
         receive(*p.b, 64);
         ASSERT_TRUE(post_inline(*p.a, SendOp::send, 8));
         ASSERT_TRUE(p.a->send_cq.empty()) << "nothing has executed it";
         const Places at = usual(p, 8);
         ASSERT_TRUE(post_by_key(p, SendOp::write, at.local, at.remote, at.rkey));
         EXPECT_NE(p.b->bytes(kInto, 8), pattern(8, 3)) << "it must not pass the send";
       }},
      {"a_fenced_write_behind_a_read",
       [](Pair& p) {
         const Places at = usual(p, 8);
         ASSERT_TRUE(post_by_key(p, SendOp::read, at.local, at.remote, at.rkey));
         ASSERT_TRUE(post_by_key(p, SendOp::write, at.local, at.remote + 64, at.rkey, kFence));
       }},
      {"a_write_to_one_that_has_failed",
       [](Pair& p) {
         receive(*p.b, 8);  // which is flushed; the write has no end, as nobody answers
         p.b->qp->fail();
         const Places at = usual(p, 8);
         ASSERT_TRUE(post_by_key(p, SendOp::write, at.local, at.remote, at.rkey));
       }},
      {"a_write_of_one_that_has_failed",
       [](Pair& p) {
         p.a->qp->fail();
         const Places at = usual(p, 8);
         ASSERT_TRUE(post_by_key(p, SendOp::write, at.local, at.remote, at.rkey));
       }},
  };
}

class Directly : public testing::TestWithParam<Case> {};
std::string case_name(const testing::TestParamInfo<Case>& info) {
  return info.param.name;
}

class DoneDirectly : public Directly {};
INSTANTIATE_TEST_SUITE_P(Rdma, DoneDirectly, testing::ValuesIn(rdma_that_is_done_directly()),
                         case_name);
TEST_P(DoneDirectly, ends_as_by_the_owner) {
  size_t ended = 0;
  const std::string by_owner = end_of_rdma(GetParam(), LinkKind::shm, ended);
  EXPECT_EQ(ended, 0u) << "the owner has not looked at it";
  const std::string by_us = end_of_rdma(GetParam(), LinkKind::direct, ended);
  EXPECT_NE(ended, 0u) << "nobody had to look at it";
  EXPECT_EQ(by_us, by_owner);
}

INSTANTIATE_TEST_SUITE_P(NotDone, Directly, testing::ValuesIn(rdma_that_is_not()), case_name);
INSTANTIATE_TEST_SUITE_P(Ordered, Directly, testing::ValuesIn(ordered_rdma()), case_name);
TEST_P(Directly, ends_as_by_the_owner) {
  size_t ended = 0;
  const std::string by_owner = end_of_rdma(GetParam(), LinkKind::shm, ended);
  EXPECT_EQ(end_of_rdma(GetParam(), LinkKind::direct, ended), by_owner);
  EXPECT_NE(by_owner.find("{id"), std::string::npos) << "something must have ended:\n" << by_owner;
}

}  // namespace
}  // namespace aperture::ib::test
