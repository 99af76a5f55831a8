// send_rate_epoll: one server, many clients. An endpoint each on the clients' side, one on the
// server's; each side has one queue, whose descriptor it sleeps on (FI_WAIT_FD, fi_trywait(3)).
//
// A message carries the number of its client as CQ data, so that the server knows whom to answer.
#include "harness/clients.hpp"

#include <vector>

#include "fabbench/messages.hpp"
#include "fabbench/messenger.hpp"

namespace aperture::bench {

namespace {

// The server posts a receive again after its answer, when the next request may be there already.
constexpr size_t kReceives = kClients + 1;

class Ends : public FabricTask {
 public:
  Ends(const Setup& setup, Side& side, size_t size_bytes)
      : FabricTask(setup, side, Target::asleep),
        size_(size_bytes),
        inject_(session_.can_inject(size_bytes)),
        out_(kClients * size_bytes, Pages::Kind::own),
        in_(kReceives * size_bytes, Pages::Kind::own),
        out_region_(session_.register_local(out_.data(), out_.size())),
        in_region_(session_.register_local(in_.data(), in_.size())),
        sends_(kClients),
        receives_(kReceives),
        pending_(kClients) {
    meet(side.channel);
    for (size_t i = 0; i < (rank_ == 0 ? kClients : kReceives); i++) post_receive(i);
  }

  std::string note() const override {
    return "epoll, " + std::to_string(kClients) + " endpoints, one queue, " +
           (inject_ ? "inject, " : "send, ") + session_.registration_text();
  }

 protected:
  static constexpr size_t clients() noexcept { return kClients; }
  size_t size() const noexcept { return size_; }
  std::byte* out(size_t client) const noexcept { return out_.data() + client * size_; }

  void send(size_t client) {
    const fi_addr_t to = rank_ == 0 ? session_.peer() : addresses_[client];
    if (inject_) {
      session_.post("room to inject", [&] {
        return fi_injectdata(endpoint(client), out(client), size_, client, to);
      });
      return;
    }
    Patience patience("the completion of a send");
    while (pending_[client]) {
      session_.poll_tx([this](const void* context) { pending_[slot_of(sends_, context)] = false; });
      session_.linger(patience);
    }
    session_.post("room to send", [&] {
      return fi_senddata(endpoint(client), out(client), size_, out_region_.desc, client, to,
                         &sends_[client].context);
    });
    pending_[client] = true;
  }

  template <typename Look>
  void take_some(Look&& look) {
    Patience patience("a message");
    const auto take = [&](const fi_cq_tagged_entry& entry) {
      expect_length(entry.len, size_);
      const size_t slot = slot_of(receives_, entry.op_context);
      if (rank_ == 0) {
        post_receive(slot);  // nothing comes before look() has asked for more
        look(slot, in(slot));
      } else {
        if (entry.data >= kClients) throw Failure("CQ data %lu of no client", entry.data);
        look(entry.data, in(slot));
        post_receive(slot);
      }
    };
    while (session_.poll_rx(take) == 0) session_.await_more("a message", patience);
  }

 private:
  // The clients' other endpoints and the server's only one learn each other's names.
  void meet(Channel& channel) {
    addresses_.push_back(session_.peer());
    for (size_t i = 1; i < kClients; i++) {
      if (rank_ == 0) {
        others_.push_back(session_.make_endpoint());
        const std::string name = Session::name_of(others_.back().get());
        channel.send(name.data(), name.size());
      } else {
        char name[512];
        addresses_.push_back(session_.insert({name, channel.receive(name, sizeof name)}));
      }
    }
  }

  static size_t slot_of(const std::vector<Slot>& slots, const void* context) noexcept {
    return static_cast<size_t>(static_cast<const Slot*>(context) - slots.data());
  }
  std::byte* in(size_t slot) const noexcept { return in_.data() + slot * size_; }
  fid_ep* endpoint(size_t client) const noexcept {
    return rank_ == 1 || client == 0 ? session_.ep() : others_[client - 1].get();
  }

  void post_receive(size_t slot) {
    session_.post("room to post a receive", [&] {
      return fi_recv(endpoint(slot), in(slot), size_, in_region_.desc, FI_ADDR_UNSPEC,
                     &receives_[slot].context);
    });
  }

  const size_t size_;
  const bool inject_;
  Pages out_, in_;
  Region out_region_, in_region_;
  std::vector<Slot> sends_, receives_;
  std::vector<bool> pending_;  // sends whose completion has not come
  std::vector<Owned<fid_ep>> others_;
  std::vector<fi_addr_t> addresses_;  // rank 1: of each client
};

}  // namespace

std::unique_ptr<FabricTask> make_clients(const Setup& setup, Side& side, size_t size_bytes) {
  return std::make_unique<Clients<Ends>>(setup, side, size_bytes);
}

}  // namespace aperture::bench
