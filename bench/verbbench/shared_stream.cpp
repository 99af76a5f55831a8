// verbs_send_rate_threads_N: a queue pair for each thread, and one completion queue for all.
#include "harness/shared_stream.hpp"

#include <memory>

#include "harness/contents.hpp"
#include "verbbench/messages.hpp"

namespace aperture::bench {

namespace {

constexpr size_t kWord = 8;

class Ends : public VerbsTask {
 public:
  Ends(const Setup& setup, Side& side, unsigned threads)
      : VerbsTask(setup, side),
        memory_(threads * kReceives * kSmall, Pages::Kind::own),
        mr_(session_.register_memory(memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE)) {
    for (unsigned i = 1; i < threads; i++) {
      others_.push_back(std::make_unique<Link>(session_, side.channel));
    }
    for (size_t i = 0; rank_ == 1 && i < threads * kReceives; i++) post_receive(i);
  }

  std::string note() const override {
    return "send, inline, one completion queue for the threads of each side: " +
           std::to_string(threads()) + ", a queue pair each";
  }

 protected:
  unsigned threads() const noexcept { return static_cast<unsigned>(others_.size()) + 1; }

  void send_one(unsigned thread, uint64_t word, bool ask) {
    ibv_sge piece = piece_of(&word, sizeof word, mr_);  // inline: its key is not looked at
    ibv_send_wr wr{};
    wr.wr_id = thread;
    wr.sg_list = &piece;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_INLINE | (ask ? unsigned{IBV_SEND_SIGNALED} : 0);
    link(thread).post(wr);
  }

  template <typename Credit>
  void poll_credits(Credit&& credit) {
    session_.poll_tx([&](const ibv_wc& wc) { credit(static_cast<unsigned>(wc.wr_id)); });
  }

  template <typename Look>
  size_t take_some(Look&& look) {
    return session_.poll_rx([&](const ibv_wc& wc) {
      expect_length(wc.byte_len, kWord);
      const uint64_t word = load_word(buffer(wc.wr_id));
      post_receive(wc.wr_id);
      look(word);
    });
  }

  void acknowledge(unsigned) const noexcept {}  // the completions of a connection are that

 private:
  static constexpr size_t kReceives = kSpan * (kSpans + 1);  // of each queue pair

  Link& link(size_t thread) noexcept { return thread == 0 ? link_ : *others_[thread - 1]; }
  std::byte* buffer(size_t slot) const noexcept { return memory_.data() + slot * kSmall; }
  void post_receive(size_t slot) {
    ibv_sge piece = piece_of(buffer(slot), kWord, mr_);
    ibv_recv_wr wr{};
    wr.wr_id = slot;
    wr.sg_list = &piece;
    wr.num_sge = 1;
    link(slot / kReceives).post(wr);
  }

  Pages memory_;
  Mr mr_;
  std::vector<std::unique_ptr<Link>> others_;  // of the threads after the first
};

}  // namespace

std::unique_ptr<VerbsTask> make_shared_stream(const Setup& setup, Side& side, unsigned threads) {
  return std::make_unique<SharedStream<Ends>>(setup, side, threads);
}

}  // namespace aperture::bench
