// The live fuzz through libfabric: a victim, an honest peer and attackers at endpoints of the kind
// FI_EP_RDM. See live.hpp. One thread each, besides the attacker's pen.
#include <poll.h>
#include <rdma/fi_atomic.h>
#include <unistd.h>

#include <map>
#include <random>

#include "doors/nursery.hpp"
#include "hostile/live.hpp"
#include "hostile/scribbler.hpp"

namespace aperture::hostile {
namespace {

using doors::Completion;
using doors::Control;
using doors::Guarded;
using doors::Node;
using doors::Op;
using doors::Region;

doors::Options options() {
  return {.caps = doors::kUsualCaps | FI_ATOMIC | FI_SOURCE | FI_DIRECTED_RECV,
          .mr_mode = doors::kBasicMr,
          .wait = FI_WAIT_FD};
}

// words: what is added, and what was there; they must outlive it.
int64_t fetch_add(Node& node, uint64_t (&words)[2], fi_addr_t to, uint64_t at, uint64_t key,
                  void* context) {
  return fi_fetch_atomic(node.ep(), &words[0], 1, nullptr, &words[1], nullptr, to, at, key,
                         FI_UINT64, FI_SUM, context);
}

// What this process does to a peer that may be anything: one operation at each of a few places,
// again and again, until the peer is gone; then each of them must have ended.
class Dealings {
 public:
  Dealings(Node& node, const Introduction& peer, uint64_t seed)
      : node_(node), random_(seed), remote_(peer.remote), to_(node.insert(peer.name)) {}

  fi_addr_t address() const { return to_; }
  void go_on() {
    for (Place& place : places_) {
      if (!place.posted) place.posted = start(place) == 0;
    }
  }
  // False: it was not of these.
  bool ended(const void* context) {
    for (Place& place : places_) {
      if (context != &place.op) continue;
      place.posted = false;
      return true;
    }
    return false;
  }
  bool pending() const {
    return std::any_of(std::begin(places_), std::end(places_),
                       [](const Place& place) { return place.posted; });
  }
  bool intact() const {
    return std::all_of(std::begin(places_), std::end(places_),
                       [](const Place& place) { return place.memory.intact(); });
  }

 private:
  struct Place {
    Op op;
    Guarded memory{kLongest};
    uint64_t words[2] = {1, 0};
    bool posted = false;
  };

  int64_t start(Place& place) {
    uint8_t* at = place.memory.data();
    const size_t size = random_() % 3 == 0 ? random_() % kLongest : random_() % 300;
    const uint64_t there = remote_.base + random_() % (remote_.size - kLongest);
    fid_ep* ep = node_.ep();
    switch (random_() % 5) {
      case 0: return fi_write(ep, at, size, nullptr, to_, there, remote_.key, &place.op);
      case 1: return fi_read(ep, at, size, nullptr, to_, there, remote_.key, &place.op);
      case 2:
        return fetch_add(node_, place.words, to_, there & ~uint64_t{7}, remote_.key, &place.op);
      default: return fi_send(ep, at, size, nullptr, to_, &place.op);
    }
  }

  Node& node_;
  std::mt19937_64 random_;
  doors::Remote remote_;
  fi_addr_t to_;
  Place places_[4];
};

// What the honest peer sends goes back from where it lies.
struct Receive {
  Op op, echo;
  Guarded memory{kLongest};
  bool from_honest = false;
};

class Victim {
 public:
  explicit Victim(Control& control) : control_(control) {}

  Report serve() {
    for (bool stop = false; !stop && report_.ok();) {
      const Moods::Mood mood = moods_.mood();
      if (mood == Moods::Mood::sleeps) sleep();
      if (mood == Moods::Mood::away) usleep(2000);
      if (control_.ready()) stop = !obey();
      moods_.begin();
      node_.poll();
      while (!node_.done().empty()) {
        const Completion c = node_.done().front();
        node_.done().pop_front();
        look_at(c);
      }
      for (auto& [who, dealings] : attackers_) dealings->go_on();
      bury();
      moods_.end(report_);
      buried_.clear();
      ++report_.rounds;
    }
    if (!honest_.memory().intact() || !common_.memory().intact())
      report_.fail("bytes beside a region");
    for (const Receive& receive : receives_) {
      if (!receive.memory.intact()) report_.fail("bytes beside a receive");
    }
    return report_;
  }

 private:
  void sleep() {
    fid* queue = &node_.cq()->fid;
    if (fi_trywait(node_.fabric(), &queue, 1) != 0) return;
    int fd = -1;
    DOOR(fi_control(queue, FI_GETWAIT, &fd));
    pollfd waits[] = {{fd, POLLIN, 0}, {control_.fd(), POLLIN, 0}};
    ::poll(waits, 2, 100);
  }

  // False: it is over.
  bool obey() {
    Order order;
    if (!control_.get(&order, 0)) return false;
    switch (order.kind) {
      case Order::Kind::stop: return false;
      case Order::Kind::dismiss: {
        auto gone = attackers_.extract(order.who);
        if (!gone.empty()) leaving_.push_back({std::move(gone.mapped()), doors::now_ns()});
        return true;
      }
      case Order::Kind::admit_honest:
        honest_address_ = node_.insert(order.introduction.name);
        for (size_t i = 0; i < receives_.size(); ++i) {
          receives_[i].from_honest = i < 2;
          post(receives_[i]);
        }
        return control_.put(Introduction{.name = node_.name(), .remote = honest_.remote()});
      case Order::Kind::admit_attacker:
        attackers_[order.who] =
            std::make_unique<Dealings>(node_, order.introduction, doors::seed_of(order.who));
        return control_.put(Introduction{.name = node_.name(), .remote = common_.remote()});
    }
    return false;
  }

  void post(Receive& receive) {
    const fi_addr_t from = receive.from_honest ? honest_address_ : FI_ADDR_UNSPEC;
    DOOR(fi_recv(node_.ep(), receive.memory.data(), kLongest, nullptr, from, &receive.op));
  }

  void look_at(const Completion& c) {
    for (Receive& receive : receives_) {
      if (c.context == &receive.echo) {
        if (c.err != 0) report_.fail("an echo failed: " + std::to_string(c.err));
        return post(receive);
      }
      if (c.context != &receive.op) continue;
      if (c.err != 0 && receive.from_honest)
        report_.fail("a receive from the honest peer failed: " + std::to_string(c.err));
      if (c.err != 0 || c.source != honest_address_) return post(receive);
      report_.bytes += c.len;
      DOOR(doors::post([&] {
        return fi_send(node_.ep(), receive.memory.data(), c.len, nullptr, honest_address_,
                       &receive.echo);
      }));
      return;
    }
    for (auto& [who, dealings] : attackers_) {
      if (dealings->ended(c.context)) return;
    }
    for (Leaving& leaving : leaving_) {
      if (leaving.dealings->ended(c.context)) return;
    }
    // who has the key of a region may write to it with data, and then no operation of ours is meant
    if (c.context != nullptr || (c.flags & (FI_REMOTE_WRITE | FI_REMOTE_READ)) == 0)
      report_.fail("a completion of nothing");
  }

  // Attackers that are gone: what was pending with them must end.
  void bury() {
    std::erase_if(leaving_, [&](Leaving& leaving) {
      if (!leaving.dealings->intact()) report_.fail("bytes beside an operation with an attacker");
      if (leaving.dealings->pending()) {
        if (doors::now_ns() - leaving.since_ns > kPatience_ns)
          report_.fail("an operation with an attacker that is gone never ended");
        return false;
      }
      fi_addr_t address = leaving.dealings->address();
      DOOR(fi_av_remove(node_.av(), &address, 1, 0));
      buried_.push_back(std::move(leaving.dealings));
      return true;
    });
  }

  struct Leaving {
    std::unique_ptr<Dealings> dealings;
    int64_t since_ns;
  };

  Control& control_;
  Report report_;
  Moods moods_{doors::run_seed()};
  std::vector<Receive> receives_ = std::vector<Receive>(6);
  std::map<uint64_t, std::unique_ptr<Dealings>> attackers_;
  std::vector<Leaving> leaving_;
  // Their memory is given back between two rounds: what that costs is none of the door's.
  std::vector<std::unique_ptr<Dealings>> buried_;
  fi_addr_t honest_address_ = FI_ADDR_UNSPEC;
  Node node_{options()};
  // zeroes at first
  Region honest_{node_, kRegionBytes, doors::kAllAccess, 0};
  Region common_{node_, kRegionBytes, doors::kAllAccess, 0};
};

DOOR_ROLE(fabric_victim) {
  const Report report = Victim(control).serve();
  return control.put(report) ? 0 : 1;
}

class FabricConnection final : public Connection {
 public:
  FabricConnection(Node& node, const Introduction& victim)
      : node_(node), to_(node.insert(victim.name)), remote_(victim.remote) {
    receive_next();
  }

  std::string send(std::span<const uint8_t> bytes) override {
    return said(node_.run(fi_send, bytes.data(), bytes.size(), nullptr, to_));
  }
  std::string receive(std::span<uint8_t> bytes) override {
    const Completion c = node_.wait(&receiving_, static_cast<int>(kPatience_ns / 1'000'000));
    if (c.err != 0) return said(c.err);
    if (c.len != bytes.size()) return "another length";
    std::copy_n(received_.data(), c.len, bytes.data());
    if (!received_.intact()) return "bytes beside a receive";
    receive_next();
    return "";
  }
  std::string write(size_t offset, std::span<const uint8_t> bytes) override {
    return said(node_.run(fi_write, bytes.data(), bytes.size(), nullptr, to_, remote_.base + offset,
                          remote_.key));
  }
  std::string read(size_t offset, std::span<uint8_t> bytes) override {
    return said(node_.run(fi_read, bytes.data(), bytes.size(), nullptr, to_, remote_.base + offset,
                          remote_.key));
  }
  std::string add(size_t offset, uint64_t value, uint64_t* before) override {
    Op op;
    uint64_t words[2] = {value, 0};
    const int64_t posted = doors::post(
        [&] { return fetch_add(node_, words, to_, remote_.base + offset, remote_.key, &op); });
    const std::string s = said(posted != 0 ? posted : node_.wait(&op).err);
    *before = words[1];
    return s;
  }

 private:
  static std::string said(int64_t code) {
    if (code == 0) return "";
    return code == -1 ? "nothing came" : fi_strerror(static_cast<int>(code < 0 ? -code : code));
  }
  void receive_next() {
    DOOR(fi_recv(node_.ep(), received_.data(), kLongest, nullptr, FI_ADDR_UNSPEC, &receiving_));
  }

  Node& node_;
  fi_addr_t to_;
  doors::Remote remote_;
  Guarded received_{kLongest};
  Op receiving_;
};

DOOR_ROLE(fabric_honest) {
  Node node(options());
  Introduction victim;
  if (!control.put(Introduction{.name = node.name()}) || !control.get(&victim)) return 1;
  FabricConnection connection(node, victim);
  const bool heard = be_honest(connection, control, doors::run_seed(), victim.pid);
  node.close_endpoint();  // before its buffers
  return heard ? 0 : 1;
}

DOOR_ROLE(fabric_nursery) {
  doors::get_info(options());  // libfabric has loaded everything
  return doors::serve_nursery(control);
}

DOOR_ROLE(fabric_attacker) {
  Target target;
  Report report;
  {
    Node node(options());
    Region region(node, kRegionBytes);
    if (!control.put(Introduction{.name = node.name(), .remote = region.remote()}) ||
        !control.get(&target)) {
      return 1;
    }
    Dealings dealings(node, target.victim, target.seed);
    std::vector<Receive> receives(4);
    for (Receive& receive : receives)
      fi_recv(node.ep(), receive.memory.data(), kLongest, nullptr, FI_ADDR_UNSPEC, &receive.op);
    Scribbler scribbler(target.seed);
    bool told = false;
    while (!control.ready()) {
      try {
        node.poll();
      } catch (const doors::DoorError&) {  // what it has done to itself
      }
      for (const Completion& c : node.done()) {
        if (dealings.ended(c.context)) continue;
        for (Receive& receive : receives) {
          if (c.context == &receive.op)
            fi_recv(node.ep(), receive.memory.data(), kLongest, nullptr, FI_ADDR_UNSPEC,
                    &receive.op);
        }
      }
      node.done().clear();
      dealings.go_on();
      if (!told && scribbler.strokes() != 0) told = control.put(uint64_t{1});
    }
    node.close_endpoint();  // before its buffers, and while they are written
    report.strokes = scribbler.strokes();
  }
  // a socket that is closed with something unread resets, and what was said last is lost
  char word = 0;
  return control.get(&word) && control.put(report) ? 0 : 1;
}

}  // namespace
}  // namespace aperture::hostile
