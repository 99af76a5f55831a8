// start_lat and start_open_lat: see start_up.hpp.
#include "fabbench/start_up.hpp"

#include <cstdio>

#include "base/clock.hpp"
#include "fabbench/messenger.hpp"
#include "stopwatch/failure.hpp"
#include "stopwatch/pages.hpp"

namespace aperture::bench {

namespace {

// One message each way, rank 0's first.
void exchange_a_message(Session& session, int rank, size_t size_bytes) {
  if (!session.can_inject(size_bytes)) throw Failure("the provider cannot inject so much");
  Messenger messenger(session, Matching::plain, 1);
  Pages out(size_bytes, Pages::Kind::own), in(size_bytes, Pages::Kind::own);
  const Region region = session.register_local(in.data(), size_bytes);
  const auto say = [&](uint64_t seed) {
    fill_pattern(out.data(), size_bytes, seed);
    session.post("room to inject", [&] { return messenger.try_inject(out.data(), size_bytes); });
  };
  const auto hear = [&](uint64_t seed) {
    session.await_rx("the first message");
    expect_pattern(in.data(), size_bytes, seed);
  };
  messenger.receive(in.data(), size_bytes, region.desc, 0);
  if (rank == 0) {
    say(1);
    hear(2);
  } else {
    hear(1);
    say(2);
  }
}

}  // namespace

Row measure_start_up(const Setup& setup, Side& side, From from, size_t size_bytes) {
  side.channel.send_word(0);  // both are there
  side.channel.receive_word();
  const uint64_t begun = now_ns();
  const InfoPtr info = find_provider(setup);
  const uint64_t loaded = now_ns();
  if (from == From::opening) {
    side.channel.send_word(0);
    side.channel.receive_word();
  }
  const uint64_t opened = now_ns();
  Session session(setup, side.channel);  // with a fi_getinfo of its own, as programs have several
  exchange_a_message(session, side.rank, size_bytes);
  const uint64_t answered = now_ns();
  // rank 1's answer may go only while it progresses
  if (side.rank == 0) side.channel.send_word(0);
  uint64_t word;
  if (side.rank == 1) {
    await_datagram(side.channel, Target::polling, &word, sizeof word,
                   [&session](int calls) { session.progress(calls); });
  }
  Row row = single_row(Unit::ns,
                       static_cast<double>(answered - (from == From::loading ? begun : opened)), 1);
  char note[96];
  std::snprintf(note, sizeof note, "first fi_getinfo %.1f ms, then %.1f ms",
                static_cast<double>(loaded - begun) / 1e6,
                static_cast<double>(answered - opened) / 1e6);
  row.note = note;
  return row;
}

}  // namespace aperture::bench
