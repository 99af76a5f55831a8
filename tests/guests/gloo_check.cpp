// Collectives of Gloo over its ibverbs transport, checked: one process of several.
//
//   gloo_check RANK SIZE FOLDER
//
// The processes find each other through files in FOLDER. Gloo takes it for an error, and aborts,
// when an algorithm is destroyed before its last send, for which its run does not wait, has
// completed. So each is destroyed as soon as the order of completions says that all of its sends
// have: a broadcast at once, for whoever sent in it has had the answer; any other after a barrier
// that followed it, for whoever sends in that one has received what was sent before.
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int kRounds = 20;
constexpr int kLargest = 200'000;  // elements
constexpr int kLeastChunk = 256;   // elements: of less, Gloo registers more than it has allocated
constexpr int kShortLived = 30;    // of each algorithm, run once

// An algorithm and what it works on, which is to outlive it.
struct Collective {
  explicit Collective(int count) : data(count) {}

  std::vector<float> data;
  std::unique_ptr<gloo::Algorithm> algorithm;
};

struct Group {
  std::shared_ptr<gloo::rendezvous::Context> context;
  int rank;
  int size;
  std::vector<Collective> sending;  // their last sends may not have completed yet

  void must(bool holds, const char* what) const {
    if (holds) return;
    std::printf("gloo_check: wrong on %d: %s\n", rank, what);
    std::fflush(stdout);
    std::_Exit(1);
  }

  template <class Algorithm>
  void allreduce(const char* what, int count, int rounds) {
    Collective& c = sending.emplace_back(count);
    c.algorithm = std::make_unique<Algorithm>(context, std::vector<float*>{c.data.data()}, count);
    for (int round = 0; round < rounds; ++round) {
      for (int i = 0; i < count; ++i) c.data[i] = static_cast<float>(rank + i % 97 + round);
      c.algorithm->run();
      const int ranks = size * (size - 1) / 2;
      for (int i = 0; i < count; ++i) {
        must(c.data[i] == static_cast<float>(ranks + size * (i % 97 + round)), what);
      }
    }
  }

  void broadcast(int root, int count) {
    Collective c(count);
    c.algorithm = std::make_unique<gloo::BroadcastOneToAll<float>>(
        context, std::vector<float*>{c.data.data()}, count, root);
    for (int i = 0; i < count; ++i) c.data[i] = static_cast<float>(rank == root ? i % 89 : -1);
    c.algorithm->run();
    for (int i = 0; i < count; ++i) must(c.data[i] == static_cast<float>(i % 89), "broadcast");
  }

  void barrier() {
    Collective c(0);
    c.algorithm = std::make_unique<gloo::BarrierAllToAll>(context);
    c.algorithm->run();
    sending.clear();
    sending.push_back(std::move(c));
  }

  void all(int count, int rounds) {
    allreduce<gloo::AllreduceRing<float>>("allreduce (ring)", count, rounds);
    if (count >= kLeastChunk)
      allreduce<gloo::AllreduceRingChunked<float>>("allreduce (chunked)", count, rounds);
    allreduce<gloo::AllreduceHalvingDoubling<float>>("allreduce (halving)", count, rounds);
    broadcast(count % size, count);
    barrier();
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const int rank = std::atoi(argv[1]);
  const int size = std::atoi(argv[2]);
  std::shared_ptr<gloo::transport::Device> device =
      gloo::transport::ibverbs::CreateDevice({"aperture0", 1, 0});
  gloo::rendezvous::FileStore store(argv[3]);
  Group group{std::make_shared<gloo::rendezvous::Context>(rank, size), rank, size, {}};
  group.context->connectFullMesh(store, device);
  for (const int count : {1, 1000, kLargest}) group.all(count, kRounds);
  for (int turn = 0; turn < kShortLived; ++turn) group.all(kLeastChunk + turn, 1);
  std::printf("gloo_check: ok\n");
  std::fflush(stdout);
  // nobody leaves while another is at its last step, and nothing is taken down with sends under way
  store.set("done" + std::to_string(rank), {'1'});
  for (int other = 0; other < size; ++other) store.wait({"done" + std::to_string(other)});
  std::_Exit(0);
}
