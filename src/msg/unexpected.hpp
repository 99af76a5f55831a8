// Messages that came before their receive, oldest first: tagged and untagged ones, and those that
// are claimed for a context, by a probe or because they are shown there (buffered.hpp).
//
// Guarded by the engine's lock, as all of a matching. Every message is in exactly one list, or out
// of all between remove() and drop(). Where receives may name a source, each also stands in the
// list of its source: many peers may flood one. They come from a pool, and payload of a few bytes
// lies in them. What all of that takes is counted: so that peers can be asked to keep payload, and
// because it has a limit, kMostBytes, above which messages are left in their rings.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/address.hpp"
#include "base/list.hpp"
#include "base/pool.hpp"
#include "msg/buffered.hpp"
#include "qp/qp.hpp"

namespace aperture::msg {

inline bool tags_match(uint64_t tag, uint64_t want, uint64_t ignore) noexcept {
  return ((tag ^ want) & ~ignore) == 0;
}

struct BySource;  // tag of the second list
struct Unexpected : ListHook, BasicListHook<BySource> {
  static constexpr size_t kSmall = sizeof(qp::Arrival);

  uint64_t tag;
  uint64_t imm;
  uint64_t len;
  uint64_t source;
  Address remote;  // who sent it, in the address table or not
  qp::Qp* qp;      // of an offer; nullptr for payload that is here
  union {
    qp::Arrival offer;                    // of an offer
    std::array<std::byte, kSmall> small;  // payload of that many bytes
  };
  qp::Port* port;  // of the endpoint that it came to
  qp::Beside beside;
  uint64_t counted;  // in bytes()
  bool tagged;
  bool claimed;
  bool lost;         // claimed, and then its sender went with it
  void* claimed_by;  // context of the claim
  std::byte* bytes;  // payload that is here: in `small`, `large` or `shown`
  std::unique_ptr<std::byte[]> large;
  Shown* shown;  // to the application, which is to claim it; null: it is not

  Unexpected() noexcept {}  // filled when it is taken from the pool
};

class UnexpectedMessages {
 public:
  // Of memory, but for what the allocator and the free lists add to it. A million short messages.
  static constexpr size_t kMostBytes = 256 * 1024 * 1024;

  // directed: receives may name a source.
  explicit UnexpectedMessages(bool directed) noexcept;
  ~UnexpectedMessages();

  bool empty(bool tagged) const noexcept { return (tagged ? tagged_ : plain_).count == 0; }
  Unexpected* front(bool tagged) noexcept { return book(tagged).all.front(); }
  Unexpected* after(Unexpected& u) noexcept { return book(u.tagged).all.after(&u); }
  // The oldest that this receive would take; null: none.
  Unexpected* find(const qp::RecvWr& wr) noexcept;
  Unexpected* find_claimed(const void* context) noexcept;

  // Copies the payload unless it is on offer. False: no memory, or kMostBytes of it are taken, and
  // nothing is kept.
  bool keep(qp::Qp& qp, const qp::Arrival& a, uint64_t source) noexcept;
  // The same for a message that is to be shown, or one that has been kept; only find_claimed finds
  // it, under the address of its RecvContext. Null: no memory, as above, and all is as before.
  Shown* keep_to_show(qp::Qp& qp, const qp::Arrival& a, uint64_t source) noexcept;
  Shown* keep_to_show(Unexpected& u) noexcept;
  // Where n bytes of it go that its sender keeps; fewer if there is no memory.
  std::byte* room_in(Unexpected& u, uint64_t& n) noexcept;
  // The queue pair that has it on offer goes.
  void lose_shown(const qp::Qp& qp) noexcept;
  // From now on only find_claimed finds it.
  void claim(Unexpected& u, void* context) noexcept;
  // Takes it out of its list; drop() is to follow.
  void remove(Unexpected& u) noexcept;
  void drop(Unexpected& u) noexcept;
  // Those that came to an endpoint, or are on offer by a queue pair.
  void drop_all_to(const qp::Port& port) noexcept;
  // But for those that are claimed: their claim is to hear of it.
  void drop_offers_of(const qp::Qp& qp) noexcept;
  // Those of `source` are of `now` from here on; kNoSource: only receives from anybody find them.
  void rename_source(uint64_t source, uint64_t now) noexcept;
  // Those that `remote` sent are of `source` from here on.
  void name_source(const Address& remote, uint64_t source) noexcept;

  // What they take of memory.
  size_t bytes() const noexcept { return bytes_; }

 private:
  using SourceList = List<Unexpected, BySource>;
  struct Book {
    size_t count = 0;  // of all: what each receive looks at
    List<Unexpected> all;
    std::vector<std::unique_ptr<SourceList>> by_source;
  };

  static bool in_source_list(const Unexpected& u) noexcept {
    return static_cast<const BasicListHook<BySource>&>(u).linked();
  }
  Book& book(bool tagged) noexcept { return tagged ? tagged_ : plain_; }
  Unexpected* make(qp::Qp& qp, const qp::Arrival& a, uint64_t source) noexcept;
  bool copy_payload(Unexpected& u, const qp::Arrival& a) noexcept;
  bool has_room_for(uint64_t bytes) const noexcept {
    assert(bytes_ <= kMostBytes);
    return bytes <= kMostBytes - bytes_;
  }
  bool make_large(Unexpected& u, uint64_t n) noexcept;
  void count(Unexpected& u, uint64_t bytes) noexcept {
    assert(has_room_for(bytes));
    u.counted += bytes;
    bytes_ += bytes;
  }
  bool list_by_source(Unexpected& u) noexcept;
  template <typename Which>
  void drop_if(Which which) noexcept;
  template <typename Which>
  void rename_if(Which which, uint64_t now) noexcept;

  const bool directed_;
  size_t bytes_ = 0;
  Book plain_;
  Book tagged_;
  List<Unexpected> claimed_;
  Pool<Unexpected> pool_;
  Pool<Shown> shown_;
};

}  // namespace aperture::msg
