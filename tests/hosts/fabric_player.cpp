// One process with endpoints of libfabric on a host: fabric_player [option...]. It does what it is
// told by lines on its standard input, each of which is answered by one line, and keeps book of its
// operations: how many were accepted, how many have completed and how, and none twice. It knows
// <rdma/...> and nothing of src/. One thread; hosts/faults_test.py is who speaks to it.
//
//   --endpoints N     that many, with one domain, address vector and completion queue (default 1)
//   --at IP PORT      of the first one (default: as FI_APERTURE_IFACE says, and any)
//   --manual          FI_THREAD_DOMAIN and FI_PROGRESS_MANUAL instead of _SAFE and _AUTO
//   --region BYTES    that peers may read and write (default 1 MiB)
#include <poll.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <functional>
#include <iomanip>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr size_t kLargest = 256 * 1024;  // of a stream's messages
constexpr uint64_t kAccess =
    FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_SEND | FI_RECV;

int64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

void must(int64_t code, const char* call) {
  if (code >= 0) return;
  std::fprintf(stderr, "fabric_player: %s: %s\n", call, fi_strerror(static_cast<int>(-code)));
  std::exit(1);
}

uint64_t mixed(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// --- messages of a stream: number, size and a sum over both and the contents ---------------------

struct Head {
  uint64_t number;
  uint64_t sum;
};

size_t size_of(uint64_t number, uint64_t seed) {
  const uint64_t drawn = mixed(seed ^ (number << 20));
  constexpr size_t kUpTo[] = {64, 64, 64, 64, 300, 4096, 20'000, kLargest};
  const size_t up_to = kUpTo[drawn % 8];
  return sizeof(Head) + drawn / 8 % (up_to - sizeof(Head) + 1);
}

uint64_t sum_of(const uint8_t* at, size_t size, uint64_t number) {
  uint64_t sum = mixed(number ^ (size << 40));
  size_t i = sizeof(Head);
  for (; i + 8 <= size; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, at + i, 8);
    sum = (sum ^ word) * 0x100000001b3;
  }
  for (; i < size; ++i) sum = (sum ^ at[i]) * 0x100000001b3;
  return sum;
}

void fill(uint8_t* at, size_t size, uint64_t number, uint64_t seed) {
  uint64_t word = mixed(seed + number);
  for (size_t i = sizeof(Head); i < size; ++i) {
    at[i] = static_cast<uint8_t>(word >> (i % 8 * 8));
    if (i % 8 == 7) word = word * 6364136223846793005 + 1442695040888963407;
  }
  const Head head{number, sum_of(at, size, number)};
  std::memcpy(at, &head, sizeof head);
}

// Whether it is one of that stream as it was sent: `number` is the one that it says itself.
bool is_whole(const uint8_t* at, size_t size, uint64_t seed, uint64_t& number) {
  Head head{};
  if (size < sizeof head) return false;
  std::memcpy(&head, at, sizeof head);
  number = head.number;
  return size == size_of(number, seed) && head.sum == sum_of(at, size, number);
}

// --- operations ----------------------------------------------------------------------------------

enum class Kind { send, receive, write, read, stream_out, stream_in };

struct Peer {
  fi_addr_t address = FI_ADDR_UNSPEC;
  uint64_t base = 0;
  uint64_t key = 0;
};

struct Slot {
  fi_context2 space;  // the context of its operation
  Kind kind;
  size_t end;
  size_t peer;
  size_t size;
  uint64_t offset;
  bool repeats;
  bool pending = false;
  int err = -1;         // of what completed last
  uint64_t number = 0;  // in its stream
  std::vector<uint8_t> memory;
};

struct Book {
  uint64_t accepted = 0, ok = 0, failed = 0, twice = 0;
  int64_t first_error_ns = 0, last_ns = 0;
  std::map<int, uint64_t> errors;  // of completions
  int refused = 0;                 // what a call answered last, but for success and -FI_EAGAIN
};

struct Stream {
  uint64_t count = 0, seed = 0, next = 0, done = 0;
  uint64_t damaged = 0, wrong = 0;  // in itself; or not the one whose turn it was
};

class Player {
 public:
  Player(int argc, char** argv);
  void run();

 private:
  void open(size_t endpoints, const char* ip, const char* port, bool manual);
  fid_ep* make_endpoint(fi_info* info);
  using Words = std::istringstream;
  std::string answer(const std::string& said);
  void add(Kind kind, size_t end, size_t peer, size_t size, bool repeats);
  int64_t post(Slot& slot);
  void post_what_is_due();
  bool take_completions();
  void complete(void* context, int err, size_t len);
  void end_one(Slot& slot, size_t len);
  // what it is told
  std::string name(Words& line);
  std::string region(Words& line);
  std::string peer(Words& line);
  std::string keep(Words& line);
  std::string stop(Words& line);
  std::string cancel(Words& line);
  std::string look(Words& line);
  std::string once(Words& line);
  std::string flood(Words& line);
  std::string latency(Words& line);
  std::string wait(Words& line);
  std::string close(Words& line);
  std::string begin(Stream& stream, Kind kind, Words& line);
  std::string leave_alone(bool spins);
  // Receives, or whatever else.
  size_t pending(bool receives) const {
    return std::count_if(slots_.begin(), slots_.end(), [&](const Slot& s) {
      return s.pending && receives == (s.kind == Kind::receive || s.kind == Kind::stream_in);
    });
  }
  bool is_told() const;

  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_av* av_ = nullptr;
  fid_cq* cq_ = nullptr;
  fid_mr* mr_ = nullptr;
  std::vector<fid_ep*> ends_;
  std::vector<uint8_t> region_;
  bool virtual_ = false;
  std::vector<Peer> peers_;
  std::deque<Slot> slots_;  // for ever: what completes a second time is found here
  std::vector<Slot*> due_;  // that are to be posted
  Book book_;
  Stream out_, in_;
  uint64_t spun_ = 0;
};

Player::Player(int argc, char** argv) {
  size_t endpoints = 1, region_bytes = 1024 * 1024;
  const char *ip = nullptr, *port = nullptr;
  bool manual = false;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--manual") manual = true;
    if (option == "--endpoints") endpoints = std::strtoul(argv[++i], nullptr, 0);
    if (option == "--region") region_bytes = std::strtoul(argv[++i], nullptr, 0);
    if (option == "--at") ip = argv[++i], port = argv[++i];
  }
  region_.resize(region_bytes);
  for (size_t i = 0; i < region_bytes; ++i)
    region_[i] = static_cast<uint8_t>(mixed(i / 8) >> i % 8);
  open(endpoints, ip, port, manual);
}

void Player::open(size_t endpoints, const char* ip, const char* port, bool manual) {
  fi_info* hints = fi_allocinfo();
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->fabric_attr->prov_name = strdup("aperture");
  hints->addr_format = FI_SOCKADDR_IN;
  hints->domain_attr->threading = manual ? FI_THREAD_DOMAIN : FI_THREAD_SAFE;
  hints->domain_attr->data_progress = manual ? FI_PROGRESS_MANUAL : FI_PROGRESS_AUTO;
  hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
  fi_info* info = nullptr;
  must(fi_getinfo(FI_VERSION(1, 14), ip, port, ip != nullptr ? FI_SOURCE : 0, hints, &info),
       "fi_getinfo");
  must(fi_fabric(info->fabric_attr, &fabric_, nullptr), "fi_fabric");
  must(fi_domain(fabric_, info, &domain_, nullptr), "fi_domain");
  fi_av_attr av_attr{};
  av_attr.type = FI_AV_TABLE;
  must(fi_av_open(domain_, &av_attr, &av_, nullptr), "fi_av_open");
  fi_cq_attr cq_attr{};
  cq_attr.format = FI_CQ_FORMAT_MSG;
  cq_attr.wait_obj = FI_WAIT_UNSPEC;
  cq_attr.size = 16 * 1024;
  must(fi_cq_open(domain_, &cq_attr, &cq_, nullptr), "fi_cq_open");
  must(fi_mr_reg(domain_, region_.data(), region_.size(), kAccess, 0, 1, 0, &mr_, nullptr),
       "fi_mr_reg");
  virtual_ = (info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
  for (size_t i = 0; i < endpoints; ++i) {
    if (i == 1 && ip != nullptr) {  // the others anywhere
      fi_freeinfo(info);
      must(fi_getinfo(FI_VERSION(1, 14), ip, nullptr, FI_SOURCE, hints, &info), "fi_getinfo");
    }
    ends_.push_back(make_endpoint(info));
  }
  fi_freeinfo(info);
  fi_freeinfo(hints);
}

fid_ep* Player::make_endpoint(fi_info* info) {
  fid_ep* ep = nullptr;
  must(fi_endpoint(domain_, info, &ep, nullptr), "fi_endpoint");
  must(fi_ep_bind(ep, &av_->fid, 0), "fi_ep_bind");
  must(fi_ep_bind(ep, &cq_->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
  must(fi_enable(ep), "fi_enable");
  return ep;
}

void Player::add(Kind kind, size_t end, size_t peer, size_t size, bool repeats) {
  slots_.push_back({{}, kind, end, peer, size, 0, repeats, false, -1, 0, {}});
  Slot& slot = slots_.back();
  slot.offset = (slots_.size() - 1) * size;
  slot.offset = size != 0 && size <= region_.size() ? slot.offset % (region_.size() - size + 1) : 0;
  slot.memory.resize(std::max<size_t>(size, 1), static_cast<uint8_t>(slots_.size()));
  due_.push_back(&slot);
}

// What the call answers.
int64_t Player::post(Slot& s) {
  fid_ep* const ep = ends_[s.end];
  uint8_t* const at = s.memory.empty() ? region_.data() : s.memory.data();
  const Peer none;
  const Peer& peer = s.peer < peers_.size() ? peers_[s.peer] : none;
  int64_t code = -FI_EINVAL;
  switch (s.kind) {
    case Kind::send: code = fi_send(ep, at, s.size, nullptr, peer.address, &s.space); break;
    case Kind::receive: code = fi_recv(ep, at, s.size, nullptr, FI_ADDR_UNSPEC, &s.space); break;
    case Kind::write:
    case Kind::read:
      code = (s.kind == Kind::write ? fi_write(ep, at, s.size, nullptr, peer.address,
                                               peer.base + s.offset, peer.key, &s.space)
                                    : fi_read(ep, at, s.size, nullptr, peer.address,
                                              peer.base + s.offset, peer.key, &s.space));
      break;
    case Kind::stream_out: {
      const size_t size = size_of(s.number = out_.next, out_.seed);
      fill(at, size, s.number, out_.seed);
      code = fi_send(ep, at, size, nullptr, peer.address, &s.space);
      if (code == 0) ++out_.next;
      break;
    }
    case Kind::stream_in:
      s.number = in_.next;
      code = fi_recv(ep, at, kLargest, nullptr, FI_ADDR_UNSPEC, &s.space);
      if (code == 0) ++in_.next;
      break;
  }
  if (code == 0) s.pending = true, ++book_.accepted;
  if (code != 0 && code != -FI_EAGAIN) book_.refused = static_cast<int>(code);
  return code;
}

void Player::post_what_is_due() {
  for (size_t i = 0; i < due_.size();) {
    Slot& slot = *due_[i];
    const bool out = slot.kind == Kind::stream_out, in = slot.kind == Kind::stream_in;
    const bool over = (out && out_.next == out_.count) || (in && in_.next == in_.count);
    const int64_t code = over ? 0 : post(slot);
    if (code == -FI_EAGAIN) {
      ++i;  // one of another kind may have room
      continue;
    }
    due_.erase(due_.begin() + static_cast<ptrdiff_t>(i));
  }
}

void Player::end_one(Slot& slot, size_t len) {
  if (slot.kind == Kind::stream_out) ++out_.done;
  if (slot.kind != Kind::stream_in) return;
  ++in_.done;
  uint64_t number = ~uint64_t{0};
  if (!is_whole(slot.memory.data(), len, in_.seed, number)) ++in_.damaged;
  if (number != slot.number) ++in_.wrong;
}

// Without a context: what somebody wrote here and told us so.
void Player::complete(void* context, int err, size_t len) {
  if (context == nullptr) return;
  Slot& slot = *static_cast<Slot*>(context);
  if (!slot.pending) {
    ++book_.twice;
    return;
  }
  slot.pending = false;
  slot.err = err;
  if (err != FI_ECANCELED) book_.last_ns = now_ns();
  if (err == 0) {
    ++book_.ok;
    end_one(slot, len);
  } else {
    if (book_.failed++ == 0) book_.first_error_ns = now_ns();
    ++book_.errors[err];
  }
  if (slot.repeats && err == 0) {
    due_.push_back(&slot);
  } else {
    // a thousand restarts leave more of these than there is memory for; `= {}` would keep it
    slot.memory = std::vector<uint8_t>();
  }
}

bool Player::take_completions() {
  fi_cq_msg_entry entries[32];
  const ssize_t n = fi_cq_read(cq_, entries, 32);
  for (ssize_t i = 0; i < n; ++i) {
    complete(entries[i].op_context, 0, entries[i].len);
  }
  if (n >= 0) return n != 0;
  if (n == -FI_EAGAIN) return false;
  if (n != -FI_EAVAIL) must(n, "fi_cq_read");
  fi_cq_err_entry error{};
  must(fi_cq_readerr(cq_, &error, 0), "fi_cq_readerr");
  complete(error.op_context, error.err, error.len);
  return true;
}

// --- what it is told -----------------------------------------------------------------------------

bool Player::is_told() const {
  pollfd in{STDIN_FILENO, POLLIN, 0};
  return ::poll(&in, 1, 0) == 1;
}

std::string Player::look(Words&) {
  std::ostringstream out;
  out << "{\"accepted\": " << book_.accepted << ", \"ok\": " << book_.ok
      << ", \"failed\": " << book_.failed << ", \"twice\": " << book_.twice
      << ", \"pending\": " << pending(false) << ", \"receives\": " << pending(true)
      << ", \"due\": " << due_.size() << ", \"first_error_ns\": " << book_.first_error_ns
      << ", \"last_ns\": " << book_.last_ns << ", \"refused\": " << book_.refused
      << ", \"sent\": " << out_.done << ", \"came\": " << in_.done << ", \"wrong\": " << in_.wrong
      << ", \"damaged\": " << in_.damaged << ", \"errors\": {";
  const char* comma = "";
  for (const auto& [err, count] : book_.errors) {
    out << comma << '"' << err << "\": " << count;
    comma = ", ";
  }
  out << "}}";
  return out.str();
}

Kind kind_of(const std::string& word) {
  return word == "send"      ? Kind::send
         : word == "receive" ? Kind::receive
         : word == "write"   ? Kind::write
                             : Kind::read;
}

// One operation: how it ended (-1: not in time; a negative code of the call), and how long it took.
std::string Player::once(Words& line) {
  std::string kind;
  size_t end = 0, peer = 0, size = 0;
  int64_t within_ms = 0;
  line >> kind >> end >> peer >> size >> within_ms;
  const int64_t began = now_ns(), until = began + within_ms * 1'000'000;
  add(kind_of(kind), end, peer, size, false);
  due_.pop_back();  // it is posted here
  Slot& slot = slots_.back();
  slot.offset = 0;
  int64_t code = -FI_EAGAIN;
  while ((code = post(slot)) == -FI_EAGAIN && now_ns() < until) take_completions();
  while (code == 0 && slot.pending && now_ns() < until) {
    if (!take_completions()) ::sched_yield();
  }
  return std::to_string(code != 0      ? code
                        : slot.pending ? -1
                                       : slot.err) +
         " " + std::to_string(now_ns() - began);
}

// Sends until there has been no room for so long: how many were taken.
std::string Player::flood(Words& line) {
  size_t peer = 0, size = 0, most = 0;
  int64_t for_ms = 0;
  line >> peer >> size >> most >> for_ms;
  size_t taken = 0, refusals = 0;
  for (int64_t until = now_ns() + for_ms * 1'000'000; now_ns() < until && taken < most;) {
    add(Kind::send, 0, peer, 0, false);
    due_.pop_back();
    slots_.back().size = std::min(size, region_.size());
    slots_.back().memory = std::vector<uint8_t>();  // of all of them the same
    const int64_t code = post(slots_.back());
    if (code == 0) {
      ++taken;
      continue;
    }
    slots_.pop_back();
    ++refusals;
    take_completions();
    ::usleep(1000);
  }
  return std::to_string(taken) + " " + std::to_string(refusals);
}

// Reads of 8 bytes, one after the other: the median, the 99th percentile and the longest, in ns.
std::string Player::latency(Words& line) {
  size_t peer = 0, count = 0;
  line >> peer >> count;
  add(Kind::read, 0, peer, 8, false);
  due_.pop_back();
  Slot& slot = slots_.back();
  std::vector<int64_t> times;
  for (size_t i = 0; i < count; ++i) {
    const int64_t began = now_ns();
    int64_t code = 0;
    while ((code = post(slot)) == -FI_EAGAIN) take_completions();
    must(code, "fi_read");
    while (slot.pending) take_completions();
    if (slot.err != 0) must(-slot.err, "a read");
    times.push_back(now_ns() - began);
  }
  std::sort(times.begin(), times.end());
  return std::to_string(times[count / 2]) + " " + std::to_string(times[count * 99 / 100]) + " " +
         std::to_string(times.back());
}

// Nothing of libfabric's is called until the next line comes.
std::string Player::leave_alone(bool spins) {
  std::cout << "left alone" << std::endl;
  while (spins && !is_told()) {
    for (uint64_t i = 0; i < 100'000; ++i) spun_ = mixed(spun_);
  }
  pollfd in{STDIN_FILENO, POLLIN, 0};
  (void)::poll(&in, 1, -1);
  return "";
}

std::string hex(const std::vector<uint8_t>& bytes) {
  std::ostringstream out;
  for (const uint8_t byte : bytes) out << std::hex << std::setw(2) << std::setfill('0') << +byte;
  return out.str();
}

std::string Player::name(Words& line) {
  size_t end = 0, len = 64;
  line >> end;
  std::vector<uint8_t> bytes(len);
  must(fi_getname(&ends_[end]->fid, bytes.data(), &len), "fi_getname");
  bytes.resize(len);
  return hex(bytes);
}

std::string Player::region(Words&) {
  return std::to_string(virtual_ ? reinterpret_cast<uintptr_t>(region_.data()) : 0) + " " +
         std::to_string(fi_mr_key(mr_));
}

// NAME BASE KEY, the latter two of its region: its number.
std::string Player::peer(Words& line) {
  std::string name;
  Peer peer;
  line >> name >> peer.base >> peer.key;
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i + 1 < name.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoul(name.substr(i, 2), nullptr, 16)));
  }
  must(fi_av_insert(av_, bytes.data(), 1, &peer.address, 0, nullptr) - 1, "fi_av_insert");
  peers_.push_back(peer);
  return std::to_string(peers_.size() - 1);
}

// KIND END PEER DEPTH SIZE: that many under way, until it is told to stop.
std::string Player::keep(Words& line) {
  std::string kind;
  size_t end = 0, peer = 0, depth = 0, size = 0;
  line >> kind >> end >> peer >> depth >> size;
  for (size_t i = 0; i < depth; ++i) add(kind_of(kind), end, peer, size, true);
  return "kept";
}

std::string Player::stop(Words& line) {
  for (Slot& slot : slots_) slot.repeats = false;
  due_.clear();
  return look(line);
}

std::string Player::cancel(Words& line) {
  for (Slot& slot : slots_) {
    if (slot.pending && slot.kind == Kind::receive) fi_cancel(&ends_[slot.end]->fid, &slot.space);
  }
  return look(line);
}

// END PEER COUNT SEED DEPTH
std::string Player::begin(Stream& stream, Kind kind, Words& line) {
  size_t end = 0, peer = 0, depth = 0;
  stream = {};
  line >> end >> peer >> stream.count >> stream.seed >> depth;
  for (size_t i = 0; i < depth; ++i) add(kind, end, peer, kLargest, true);
  return "begun";
}

// MS: asleep in the completion queue.
std::string Player::wait(Words& line) {
  int ms = 0;
  line >> ms;
  fi_cq_msg_entry entry{};
  const ssize_t n = fi_cq_sread(cq_, &entry, 1, nullptr, ms);
  if (n == 1) complete(entry.op_context, 0, entry.len);
  return std::to_string(n);
}

// The region: how, and how long that took.
std::string Player::close(Words&) {
  const int64_t began = now_ns();
  const int code = fi_close(&mr_->fid);
  return std::to_string(code) + " " + std::to_string(now_ns() - began);
}

std::string Player::answer(const std::string& said) {
  Words line(said);
  std::string word;
  line >> word;
  if (word == "stream") return begin(out_, Kind::stream_out, line);
  if (word == "expect") return begin(in_, Kind::stream_in, line);
  if (word == "rest" || word == "spin") return leave_alone(word == "spin");
  using Command = std::string (Player::*)(Words&);
  static const std::map<std::string, Command> kCommands = {
      {"name", &Player::name}, {"region", &Player::region}, {"peer", &Player::peer},
      {"keep", &Player::keep}, {"stop", &Player::stop},     {"cancel", &Player::cancel},
      {"look", &Player::look}, {"once", &Player::once},     {"flood", &Player::flood},
      {"wait", &Player::wait}, {"close", &Player::close},   {"latency", &Player::latency},
  };
  const auto command = kCommands.find(word);
  return command != kCommands.end() ? (this->*command->second)(line) : "what?";
}

void Player::run() {
  std::string line;
  uint64_t vain = 0;
  for (uint64_t round = 0;; ++round) {
    if (round % 64 == 0 && is_told()) {
      if (!std::getline(std::cin, line)) return;
      const std::string said = answer(line);
      if (!said.empty()) std::cout << said << std::endl;
    }
    const bool any = take_completions();
    vain = any ? 0 : vain + 1;
    if (!due_.empty()) post_what_is_due();
    if (vain % 64 == 63) ::sched_yield();
    if (vain > 2'000 && vain % 64 == 0) ::usleep(100);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(true);
  Player player(argc, argv);
  std::cout << "ready" << std::endl;
  player.run();
  std::_Exit(0);
}
