// The queue pair numbers of this process, and the ports behind them.
//
// A number is port << 8 | index, so it names a queue pair of this host without anybody having to
// be asked, and whoever says hello to that port reaches its process. Indices are 1 to 255, in an
// order of which others know nothing; one that was used rests until kRest others of its port have
// been given back, so that a number that somebody still remembers does not mean another queue pair
// soon. 0xffffff is nobody's: it means a multicast group (IBTA vol. 1, 10.5.1); 0 and 1, those of
// the management queue pairs, would be of port 0, which there is not. A full port is followed by
// another; of empty ones one is kept. Any thread, without an engine's lock: ports are opened and
// closed by the control thread, which is waited for.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "nic/contact.hpp"

namespace aperture::nic {

using QpNumber = uint32_t;  // 24 bits; never 0, 1 or 0xffffff

// The address of a queue pair at an IP.
Address qp_address(const Address& ip, QpNumber number) noexcept;
// The number of a queue pair at an address.
constexpr QpNumber qp_number(uint16_t port, uint8_t index) noexcept {
  return QpNumber{port} << 8 | index;
}

// Where queue pairs can be reached: the host's addresses, and 127.0.0.1 in any case, since who
// knows no address of a peer means this host. By exception std::bad_alloc.
std::vector<Address> queue_pair_ips();

class QpNumbers {
 public:
  static constexpr size_t kRest = 64;
  // What a port has to give, in a random order.
  static std::deque<uint8_t> indices_of(uint16_t port);

  // The process's one. By exception std::bad_alloc, at first use.
  static QpNumbers& instance();
  // ips: where ports are opened; those that are not there at that time are left out.
  explicit QpNumbers(std::vector<Address> ips) noexcept;
  QpNumbers(const QpNumbers&) = delete;
  QpNumbers& operator=(const QpNumbers&) = delete;
  ~QpNumbers();

  // Errors: those of Contact::instance() and Contact::open_port().
  Result<QpNumber> take() noexcept;
  // Nobody listens under it any more. One that was not taken is ignored.
  void give_back(QpNumber number) noexcept;
  // Closes the empty port that is kept for the next take().
  void close_idle() noexcept;
  size_t ports() noexcept;

 private:
  struct Free {
    uint8_t index;
    bool used;  // it has been somebody's
  };
  struct Port {
    PortId id = 0;
    // A ring, the longest rested first: giving back never allocates.
    std::array<Free, 256> free{};
    size_t first_free = 0;
    size_t free_count = 0;
    std::array<bool, 256> taken{};
    size_t in_use = 0;

    bool has_one() const noexcept {
      return free_count != 0 && (!free[first_free].used || free_count > kRest);
    }
    void put(uint8_t index, bool used) noexcept;
    uint8_t take() noexcept;
  };
  Result<PortId> open_where_it_can_be(Contact& contact, uint16_t& number);
  Status add_port() noexcept;
  void close_empty_but(size_t kept) noexcept;

  std::mutex mutex_;
  std::vector<Address> ips_;
  std::map<uint16_t, Port> ports_;  // by number; guarded by mutex_
};

}  // namespace aperture::nic
