// The live fuzz through verbs: a victim with a queue pair of type RC for each of its peers, an
// honest peer and attackers. See live.hpp. One thread each, besides the attacker's pen.
#include <poll.h>
#include <unistd.h>

#include <map>
#include <random>

#include "doors/nursery.hpp"
#include "hostile/live.hpp"
#include "hostile/scribbler.hpp"
#include "verbs/ends.hpp"

namespace aperture::hostile {
namespace {

using doors::Control;
using doors::Guarded;
using test::End;

// Bytes between canaries, with a region over them.
struct Registered {
  Registered(ibv_pd* pd, size_t size, int access = test::kEverything)
      : memory(size), mr(ibv_reg_mr(pd, memory.data(), size, access)) {
    if (mr == nullptr) throw std::runtime_error("ibv_reg_mr failed");
  }
  // Busy for as long as an attacker says in a slot of its own that it is inside, and lives.
  ~Registered() {
    const int64_t end = doors::now_ns() + kPatience_ns;
    while (ibv_dereg_mr(mr) == EBUSY && doors::now_ns() < end) {
    }
  }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

  ibv_sge sge(size_t size) const {
    return {reinterpret_cast<uint64_t>(memory.data()), static_cast<uint32_t>(size), mr->lkey};
  }
  doors::Remote remote() const {
    return {reinterpret_cast<uint64_t>(memory.data()), mr->rkey, memory.size(), {}};
  }

  Guarded memory;
  ibv_mr* mr;
};

struct Opened {
  Opened() {
    if (device.context == nullptr) throw std::runtime_error("no aperture0: use `aperture run`");
    pd = ibv_alloc_pd(device.context);
    channel = ibv_create_comp_channel(device.context);
  }
  ~Opened() {
    ibv_destroy_comp_channel(channel);
    ibv_dealloc_pd(pd);
  }
  test::Device device;
  ibv_pd* pd;
  ibv_comp_channel* channel;
};

constexpr uint64_t kReceives = 1000;  // ids from there on

// One end, its receives, and what this process does to the peer there: one operation at each of a
// few places, again and again, until that ends. Places are numbered from 0 on.
class Dealings {
 public:
  Dealings(Opened& opened, uint64_t seed) : random_(seed), end_(opened.device.context, opened.pd) {
    for (size_t i = 0; i < 4; ++i) {
      places_.push_back(std::make_unique<Registered>(opened.pd, kLongest));
      receives_.push_back(std::make_unique<Registered>(opened.pd, kLongest));
    }
  }
  uint32_t number() const { return end_.qp->qp_num; }
  void connect(const Introduction& peer) {
    remote_ = peer.remote;
    test::bring_up(end_.qp, peer.queue_pair);
    for (size_t i = 0; i < receives_.size(); ++i) receive(i);
  }
  void go_on() {
    for (size_t i = 0; i < places_.size(); ++i) {
      if ((posted_ & 1u << i) == 0 && start(i) == 0) posted_ |= 1u << i;
    }
  }
  void poll() {
    ibv_wc wc{};
    while (ibv_poll_cq(end_.cq, 1, &wc) == 1) {
      if (wc.wr_id < kReceives)
        posted_ &= ~(1u << wc.wr_id);
      else if (wc.status == IBV_WC_SUCCESS)
        receive(wc.wr_id - kReceives);
    }
  }
  // Nothing was written beside any of its memory.
  bool intact() const {
    const auto good = [](const auto& each) { return each->memory.intact(); };
    return std::all_of(places_.begin(), places_.end(), good) &&
           std::all_of(receives_.begin(), receives_.end(), good);
  }
  // All of it ends once the queue pair is in the error state.
  bool ends() {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_ERR;
    if (ibv_modify_qp(end_.qp, &attr, IBV_QP_STATE) != 0) return false;
    for (const int64_t end = doors::now_ns() + kPatience_ns; posted_ != 0;) {
      poll();
      if (doors::now_ns() > end) return false;
    }
    return true;
  }

 private:
  int receive(size_t i) { return end_.receive(receives_[i]->sge(kLongest), kReceives + i); }
  int start(size_t i) {
    const size_t size = random_() % 3 == 0 ? random_() % kLongest : random_() % 300;
    const uint64_t there = remote_.base + random_() % (remote_.size - kLongest);
    const auto key = static_cast<uint32_t>(remote_.key);
    const ibv_sge piece = places_[i]->sge(size);
    switch (random_() % 5) {
      case 0: return end_.post(IBV_WR_RDMA_WRITE, piece, i, there, key);
      case 1: return end_.post(IBV_WR_RDMA_READ, piece, i, there, key);
      case 2: return end_.post(IBV_WR_RDMA_WRITE_WITH_IMM, piece, i, there, key);
      case 3: {
        ibv_sge word = places_[i]->sge(8);
        ibv_send_wr wr = test::send_wr(IBV_WR_ATOMIC_FETCH_AND_ADD, word, i);
        wr.wr.atomic = {there & ~uint64_t{7}, 1, 0, key};
        return test::post_wr(end_.qp, wr);
      }
      default: return end_.post(IBV_WR_SEND, piece, i);
    }
  }

  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Registered>> places_, receives_;
  End end_;
  doors::Remote remote_;
  uint32_t posted_ = 0;  // bit set of places
};

class Victim {
 public:
  explicit Victim(Control& control) : control_(control) {
    for (size_t i = 0; i < 4; ++i)
      receives_.push_back(std::make_unique<Registered>(opened_.pd, kLongest));
  }

  Report serve() {
    for (bool stop = false; !stop && report_.ok();) {
      const Moods::Mood mood = moods_.mood();
      if (mood == Moods::Mood::sleeps) sleep();
      if (mood == Moods::Mood::away) usleep(2000);
      if (control_.ready()) stop = !obey();
      moods_.begin();
      serve_honest();
      for (auto& [who, dealings] : attackers_) {
        dealings->poll();
        dealings->go_on();
      }
      moods_.end(report_);
      ++report_.rounds;
    }
    if (!honest_memory_.memory.intact() || !common_.memory.intact())
      report_.fail("bytes beside a region");
    for (const auto& receive : receives_) {
      if (!receive->memory.intact()) report_.fail("bytes beside a receive");
    }
    return report_;
  }

 private:
  void sleep() {
    if (ibv_req_notify_cq(honest_.cq, 0) != 0) return report_.fail("ibv_req_notify_cq");
    serve_honest();
    pollfd waits[] = {{opened_.channel->fd, POLLIN, 0}, {control_.fd(), POLLIN, 0}};
    // attackers' completions do not wake it: they are looked at all the same, soon
    if (::poll(waits, 2, 5) <= 0 || (waits[0].revents & POLLIN) == 0) return;
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    if (ibv_get_cq_event(opened_.channel, &cq, &context) == 0) ibv_ack_cq_events(cq, 1);
  }

  void serve_honest() {
    ibv_wc wc{};
    while (ibv_poll_cq(honest_.cq, 1, &wc) == 1) {
      if (wc.status != IBV_WC_SUCCESS)
        return report_.fail(std::string("with the honest peer: ") + ibv_wc_status_str(wc.status));
      const bool received = wc.wr_id >= kReceives;
      const size_t i = received ? wc.wr_id - kReceives : wc.wr_id;
      report_.bytes += received ? wc.byte_len : 0;
      const int code = received ? honest_.post(IBV_WR_SEND, receives_[i]->sge(wc.byte_len), i)
                                : honest_.receive(receives_[i]->sge(kLongest), kReceives + i);
      if (code != 0) report_.fail("cannot serve the honest peer: " + std::to_string(code));
    }
  }

  // False: it is over.
  bool obey() {
    Order order;
    if (!control_.get(&order, 0)) return false;
    switch (order.kind) {
      case Order::Kind::stop: return false;
      case Order::Kind::dismiss: {
        const auto gone = attackers_.extract(order.who);
        if (gone.empty()) return true;
        const int64_t began = doors::now_ns();
        if (!gone.mapped()->ends()) report_.fail("work with an attacker that is gone never ended");
        if (!gone.mapped()->intact()) report_.fail("bytes beside work with an attacker");
        report_.worst_ns = std::max(report_.worst_ns, doors::now_ns() - began);
        return true;
      }
      case Order::Kind::admit_honest:
        test::bring_up(honest_.qp, order.introduction.queue_pair);
        for (size_t i = 0; i < receives_.size(); ++i)
          honest_.receive(receives_[i]->sge(kLongest), kReceives + i);
        return control_.put(
            Introduction{.queue_pair = honest_.qp->qp_num, .remote = honest_memory_.remote()});
      case Order::Kind::admit_attacker: {
        auto dealings = std::make_unique<Dealings>(opened_, doors::seed_of(order.who));
        dealings->connect(order.introduction);
        const Introduction own{.queue_pair = dealings->number(), .remote = common_.remote()};
        attackers_[order.who] = std::move(dealings);
        return control_.put(own);
      }
    }
    return false;
  }

  Control& control_;
  Report report_;
  Moods moods_{doors::run_seed()};
  Opened opened_;
  Registered honest_memory_{opened_.pd, kRegionBytes};
  Registered common_{opened_.pd, kRegionBytes};
  std::vector<std::unique_ptr<Registered>> receives_;
  End honest_{opened_.device.context, opened_.pd, opened_.channel};
  std::map<uint64_t, std::unique_ptr<Dealings>> attackers_;
};

DOOR_ROLE(verbs_victim) {
  const Report report = Victim(control).serve();
  return control.put(report) && !testing::Test::HasFailure() ? 0 : 1;
}

class VerbsConnection final : public Connection {
 public:
  VerbsConnection(Opened& opened, End& end, const Introduction& victim)
      : end_(end), remote_(victim.remote), out_(opened.pd, kLongest), in_(opened.pd, kLongest) {
    test::bring_up(end.qp, victim.queue_pair);
    receive_next();
  }

  std::string send(std::span<const uint8_t> bytes) override { return post(IBV_WR_SEND, bytes, 0); }
  std::string receive(std::span<uint8_t> bytes) override {
    if (const std::string s = await(kReceives); !s.empty()) return s;
    if (received_ != bytes.size()) return "another length";
    return taken(bytes);
  }
  std::string write(size_t offset, std::span<const uint8_t> bytes) override {
    return post(IBV_WR_RDMA_WRITE, bytes, offset);
  }
  // In pieces of at most kLongest. They arrive where messages do, so no message may be due.
  std::string read(size_t offset, std::span<uint8_t> bytes) override {
    for (size_t at = 0; at < bytes.size() || at == 0; at += kLongest) {
      const std::span<uint8_t> piece = bytes.subspan(at, std::min(kLongest, bytes.size() - at));
      if (end_.post(IBV_WR_RDMA_READ, out_.sge(piece.size()), 0, remote_.base + offset + at,
                    static_cast<uint32_t>(remote_.key)) != 0) {
        return "could not be posted";
      }
      if (const std::string s = await(0); !s.empty()) return s;
      if (!out_.memory.intact()) return "bytes beside a read";
      std::copy_n(out_.memory.data(), piece.size(), piece.data());
    }
    return "";
  }
  std::string add(size_t offset, uint64_t value, uint64_t* before) override {
    ibv_sge word = out_.sge(8);
    ibv_send_wr wr = test::send_wr(IBV_WR_ATOMIC_FETCH_AND_ADD, word, 0);
    wr.wr.atomic = {remote_.base + offset, value, 0, static_cast<uint32_t>(remote_.key)};
    if (test::post_wr(end_.qp, wr) != 0) return "could not be posted";
    const std::string s = await(0);
    std::memcpy(before, out_.memory.data(), sizeof *before);
    return s;
  }

 private:
  std::string post(ibv_wr_opcode opcode, std::span<const uint8_t> bytes, size_t offset) {
    std::copy(bytes.begin(), bytes.end(), out_.memory.data());
    if (end_.post(opcode, out_.sge(bytes.size()), 0, remote_.base + offset,
                  static_cast<uint32_t>(remote_.key)) != 0) {
      return "could not be posted";
    }
    return await(0);
  }
  // Until that work request has completed; what else completes is kept.
  std::string await(uint64_t id) {
    for (const int64_t end = doors::now_ns() + kPatience_ns; !done_.contains(id);) {
      ibv_wc wc{};
      if (ibv_poll_cq(end_.cq, 1, &wc) == 1) done_[wc.wr_id] = wc;
      if (doors::now_ns() > end) return "nothing came";
    }
    const ibv_wc wc = done_.extract(id).mapped();
    if (wc.wr_id == kReceives) received_ = wc.byte_len;
    return wc.status == IBV_WC_SUCCESS ? "" : ibv_wc_status_str(wc.status);
  }
  std::string taken(std::span<uint8_t> bytes) {
    std::copy_n(in_.memory.data(), bytes.size(), bytes.data());
    if (!in_.memory.intact()) return "bytes beside a receive";
    receive_next();
    return "";
  }
  void receive_next() { end_.receive(in_.sge(kLongest), kReceives); }

  End& end_;
  doors::Remote remote_;
  Registered out_, in_;
  std::map<uint64_t, ibv_wc> done_;
  size_t received_ = 0;
};

DOOR_ROLE(verbs_honest) {
  Opened opened;
  End end(opened.device.context, opened.pd);
  Introduction victim;
  if (!control.put(Introduction{.queue_pair = end.qp->qp_num}) || !control.get(&victim)) return 1;
  VerbsConnection connection(opened, end, victim);
  return be_honest(connection, control, doors::run_seed(), victim.pid) ? 0 : 1;
}

DOOR_ROLE(verbs_nursery) {
  return doors::serve_nursery(control);
}

DOOR_ROLE(verbs_attacker) {
  Target target;
  Report report;
  {
    Opened opened;
    Registered region(opened.pd, kRegionBytes);
    Dealings dealings(opened, control.fd() + 1u);
    if (!control.put(Introduction{.queue_pair = dealings.number(), .remote = region.remote()}) ||
        !control.get(&target)) {
      return 1;
    }
    dealings.connect(target.victim);
    Scribbler scribbler(target.seed);
    bool told = false;
    while (!control.ready()) {
      dealings.poll();
      dealings.go_on();
      if (!told && scribbler.strokes() != 0) told = control.put(uint64_t{1});
    }
    report.strokes = scribbler.strokes();
  }
  // a socket that is closed with something unread resets, and what was said last is lost
  char word = 0;
  return control.get(&word) && control.put(report) ? 0 : 1;
}

}  // namespace
}  // namespace aperture::hostile
