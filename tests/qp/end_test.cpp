// How connections end: lost, closed from our side, with operations of every kind at every stage.
// Each operation completes exactly once, and nothing is written afterwards.
#include <map>

#include "qp/one_sided.hpp"

namespace aperture::qp::test {
namespace {

class End : public OneSided {
 protected:
  // Posts one operation of each kind and size; the buffers live as long as the test.
  void post_everything(uint64_t remote, uint64_t key) {
    for (const size_t size : {8u, 300u, 20000u, 400000u}) {
      for (int kind = 0; kind < 4; ++kind) {
        buffers_.push_back(std::make_unique<Guarded>(size, 5));
        const iovec iov{buffers_.back()->data(), size};
        const uint64_t context = ++posted_;
        Status s;
        if (kind == 0 || kind == 3) {
          SendWr wr = send_of(iov, context);
          wr.delivery = kind == 3;
          s = a().qp->requester().send(wr);
        } else {
          s = a().rma(kind == 1 ? WqeKind::write : WqeKind::read, iov, {remote, size, key},
                      context);
        }
        if (!s) --posted_;
      }
    }
  }
  void collect() {
    while (!a().tx_cq.empty()) {
      EXPECT_EQ(++ended_[reinterpret_cast<uint64_t>(a().tx_cq.front().context)], 1);
      const Errc err = take_end(a().tx_cq);
      if (err == Errc::ok) continue;
      last_error_ = err;
      ++errors_;
    }
  }
  void expect_each_once() {
    EXPECT_EQ(ended_.size(), posted_);
    EXPECT_EQ(a().port.tx.wqes.out(), 0u);
    EXPECT_EQ(a().port.tx.queued, 0u);
    EXPECT_TRUE(a().tx_cq.has_room());
    EXPECT_FALSE(a().qp->has_pending());
    for (const auto& buffer : buffers_) EXPECT_TRUE(buffer->canaries_intact());
  }

  std::vector<std::unique_ptr<Guarded>> buffers_;
  std::map<uint64_t, int> ended_;
  uint64_t posted_ = 0;
  uint64_t errors_ = 0;
  Errc last_error_ = Errc::ok;
};

INSTANTIATE_TEST_SUITE_P(links, End, kSettings, setting_name);

TEST_P(End, finish_at_any_moment_ends_everything_once) {
  for (int polls = 0; polls < 12; ++polls) {
    Guarded memory(400000, 7);
    const auto region = pair_.region(b(), memory, Rights::remote_write | Rights::remote_read);
    ASSERT_NE(a().qp->state(), QpState::dead);
    post_everything(memory.address(), region.key);
    for (int i = 0; i < polls; ++i) {
      a().poll();
      if (target_polls()) b().poll();
    }
    auto lane = a().qp->finish(Errc::shut_down);
    EXPECT_NE(lane, nullptr);
    EXPECT_EQ(a().qp->finish(Errc::shut_down), nullptr);
    collect();
    expect_each_once();
    EXPECT_TRUE(errors_ == 0 || last_error_ == Errc::shut_down);
    EXPECT_FALSE(a().poll());
    EXPECT_EQ(a().qp->requester().send(send_of({}, 1)).error(), Errc::again);
    // a new pair for the next round
    EXPECT_TRUE(b().qp->finish(Errc::shut_down) != nullptr);
    for (const Received& r : b().sink.messages) EXPECT_TRUE(r.done);
    pair_.renew();
    fall_asleep();
    ended_.clear();
    posted_ = 0;
    pair_.close(region);
  }
}

TEST_P(End, lost_peer_ends_everything_with_that_error) {
  Guarded memory(400000, 7);
  const auto region = pair_.region(b(), memory, Rights::remote_write | Rights::remote_read);
  post_everything(memory.address(), region.key);
  a().poll();
  b().poll();
  a().qp->ending().lose(Errc::peer_lost);
  EXPECT_EQ(a().qp->state(), QpState::draining);
  EXPECT_EQ(a().qp->requester().send(send_of({}, 1)).error(), Errc::again);
  ASSERT_TRUE(pair_.until([&] { return a().qp->needs_wind_up(); }, true, false));
  a().qp->finish(Errc::protocol);  // what was told to lose() is the reason
  collect();
  expect_each_once();
  EXPECT_GT(errors_, 0u);
  EXPECT_EQ(last_error_, Errc::peer_lost);
}

TEST_P(End, what_a_lost_peer_had_published_is_still_executed) {
  Guarded memory(400, 7);
  const auto region = pair_.region(b(), memory, Rights::remote_write);
  const auto data = pattern(400, 1);
  const iovec iov = iov_of(data);
  SendWr send = send_of(iov, 1);
  ASSERT_TRUE(a().qp->requester().send(send));
  if (GetParam().target == Target::polls) {
    ASSERT_TRUE(a().write(iov, {memory.address(), 400, region.key}, 2));
  }
  ASSERT_TRUE(a().qp->requester().send(send));
  b().qp->ending().lose(Errc::peer_lost);
  ASSERT_TRUE(pair_.until([&] { return b().qp->needs_wind_up(); }, false, true));
  b().qp->finish(Errc::peer_lost);
  ASSERT_EQ(b().sink.messages.size(), 2u);
  EXPECT_TRUE(b().sink.messages[1].payload == data);
  EXPECT_TRUE(GetParam().target != Target::polls || memory.get() == data);
}

TEST_P(End, offer_of_a_lost_peer_ends_its_receive_with_an_error) {
  b().sink.hold_offers = true;
  const auto data = pattern(300000, 1);
  const iovec iov = iov_of(data);
  ASSERT_TRUE(a().send(iov, 1));
  ASSERT_TRUE(a().send(iov, 2));
  ASSERT_TRUE(pair_.until([&] { return b().sink.held.size() == 2; }, false, true));
  b().sink.begin(*b().qp, b().sink.held[0]);  // begun before the loss; the other after it
  b().qp->ending().lose(Errc::peer_lost);
  b().sink.begin(*b().qp, b().sink.held[1]);
  b().qp->finish(Errc::peer_lost);
  ASSERT_EQ(b().sink.messages.size(), 2u);
  for (const Received& r : b().sink.messages) {
    EXPECT_TRUE(r.done);
    EXPECT_EQ(r.err, Errc::peer_lost);
  }
}

// A peer that dies with the head of our request ring claimed, or with its answers unread, must not
// hold us up for ever. What it had claimed is not executed again: the application may have seen it
// in its memory, and written something else there since.
TEST_P(End, head_that_waits_for_a_dead_peer_is_given_up) {
  Guarded memory(400000, 7);
  const auto region = pair_.region(b(), memory, Rights::remote_write | Rights::remote_read);
  const auto data = pattern(400, 1);
  b().qp->wake_up();
  const iovec iov = iov_of(data);
  ASSERT_TRUE(a().write(iov, {memory.address(), 400, region.key}, 1));
  ASSERT_TRUE(a().send(iov, 2));
  auto& words = a().qp->lane()->request_tx.words();
  words.claim.store(transport::claim_word(0, transport::ClaimState::taken));
  for (int i = 0; i < 10; ++i) b().poll();
  EXPECT_TRUE(memory.all(7));
  b().qp->ending().lose(Errc::peer_lost);
  EXPECT_TRUE(pair_.until([&] { return b().qp->needs_wind_up(); }, false, true));
  b().qp->finish(Errc::peer_lost);
  EXPECT_TRUE(memory.all(7));
  EXPECT_TRUE(b().sink.messages.empty()) << "nor what stands behind it";
}

TEST_P(End, head_whose_answer_has_no_room_is_given_up) {
  Guarded memory(4'000'000, 7);
  const auto region = pair_.region(b(), memory, Rights::remote_read);
  Guarded local(4'000'000);
  b().qp->wake_up();
  constexpr size_t kEach = transport::kReadAheadBytes;  // of one read, all is asked for at once
  for (size_t at = 0; at + kEach <= local.size(); at += kEach) {
    ASSERT_TRUE(
        a().read({local.data() + at, kEach}, {memory.address() + at, kEach, region.key}, 1));
  }
  for (int i = 0; i < 100; ++i) b().poll();  // the response ring is full now
  EXPECT_FALSE(b().qp->ending().drained() && !b().qp->lane()->request_rx.cells.ready());
  b().qp->ending().lose(Errc::peer_lost);
  EXPECT_TRUE(pair_.until([&] { return b().qp->needs_wind_up(); }, false, true));
  b().qp->finish(Errc::peer_lost);
}

TEST_P(End, what_is_posted_while_connecting_ends_with_an_error_each) {
  Pair pair(GetParam().link);
  const auto data = pattern(300, 1);
  const iovec iov = iov_of(data);
  ASSERT_TRUE(pair.a->send(iov, 1));
  ASSERT_TRUE(pair.a->write(iov, {1, 300, 2}, 2));
  SendWr quiet = send_of(iov, 3);
  quiet.completion = false;
  ASSERT_TRUE(pair.a->qp->requester().send(quiet));
  EXPECT_EQ(pair.a->qp->finish(Errc::refused), nullptr);
  ASSERT_EQ(pair.a->tx_cq.size(), 3u);  // errors are told even where success is not
  for (int i = 0; i < 3; ++i) EXPECT_EQ(pair.a->tx_cq.pop_error().err, Errc::refused);
  EXPECT_EQ(pair.a->port.tx.queued, 0u);
}

}  // namespace
}  // namespace aperture::qp::test
