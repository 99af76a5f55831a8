// Collectives of Gloo over its ibverbs transport, checked: one process of several.
//
//   gloo_check RANK SIZE FOLDER
//
// The processes find each other through files in FOLDER. Each algorithm is kept until the end, as
// in a training loop: Gloo takes it for an error when one is destroyed before its last send, for
// which its run does not wait, has completed.
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
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace {

constexpr int kRounds = 20;
constexpr int kLargest = 200'000;  // elements

struct Group {
  std::shared_ptr<gloo::rendezvous::Context> context;
  int rank;
  int size;
  std::deque<std::vector<float>> buffers;
  std::vector<std::unique_ptr<gloo::Algorithm>> algorithms;

  void must(bool holds, const char* what) const {
    if (holds) return;
    std::printf("gloo_check: wrong on %d: %s\n", rank, what);
    std::fflush(stdout);
    std::_Exit(1);
  }

  template <class Algorithm>
  void allreduce(const char* what, int count) {
    std::vector<float>& data = buffers.emplace_back(count);
    auto algorithm = std::make_unique<Algorithm>(context, std::vector<float*>{data.data()}, count);
    for (int round = 0; round < kRounds; ++round) {
      for (int i = 0; i < count; ++i) data[i] = static_cast<float>(rank + i % 97 + round);
      algorithm->run();
      const int ranks = size * (size - 1) / 2;
      for (int i = 0; i < count; ++i) {
        must(data[i] == static_cast<float>(ranks + size * (i % 97 + round)), what);
      }
    }
    algorithms.push_back(std::move(algorithm));
  }

  void broadcast(int root, int count) {
    std::vector<float>& data = buffers.emplace_back(count);
    auto algorithm = std::make_unique<gloo::BroadcastOneToAll<float>>(
        context, std::vector<float*>{data.data()}, count, root);
    for (int i = 0; i < count; ++i) data[i] = static_cast<float>(rank == root ? i % 89 : -1);
    algorithm->run();
    for (int i = 0; i < count; ++i) must(data[i] == static_cast<float>(i % 89), "broadcast");
    algorithms.push_back(std::move(algorithm));
  }

  void barrier() {
    auto algorithm = std::make_unique<gloo::BarrierAllToAll>(context);
    algorithm->run();
    algorithms.push_back(std::move(algorithm));
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
  Group group{std::make_shared<gloo::rendezvous::Context>(rank, size), rank, size, {}, {}};
  group.context->connectFullMesh(store, device);
  for (const int count : {1, 1000, kLargest}) {
    group.allreduce<gloo::AllreduceRing<float>>("allreduce (ring)", count);
    group.allreduce<gloo::AllreduceRingChunked<float>>("allreduce (chunked)", count);
    group.allreduce<gloo::AllreduceHalvingDoubling<float>>("allreduce (halving)", count);
    group.broadcast(count % size, count);
    group.barrier();
  }
  std::printf("gloo_check: ok\n");
  std::fflush(stdout);
  // nobody leaves while another is at its last step, and nothing is taken down with sends under way
  store.set("done" + std::to_string(rank), {'1'});
  for (int other = 0; other < size; ++other) store.wait({"done" + std::to_string(other)});
  std::_Exit(0);
}
