// Doorbells: readable from a ring until drained, and no end of one can be made to block.
#include "base/doorbell.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <string>

namespace aperture {
namespace {

bool is_readable(const UniqueFd& fd) {
  pollfd p{fd.get(), POLLIN, 0};
  return ::poll(&p, 1, 0) == 1;
}

TEST(Doorbell, is_readable_from_a_ring_through_any_of_its_ends_until_it_is_drained) {
  const UniqueFd own = *make_doorbell();
  const UniqueFd given = *open_doorbell(own.get());
  const UniqueFd rung = *open_doorbell(given.get());
  EXPECT_FALSE(is_readable(own));
  for (const UniqueFd* end : {&own, &given, &rung}) {
    for (int i = 0; i < 3; ++i) ring_doorbell(end->get());
    EXPECT_TRUE(is_readable(own));
    drain_doorbell(own.get());
    EXPECT_FALSE(is_readable(own));
  }
  drain_doorbell(own.get());  // one that is quiet
}

TEST(Doorbell, no_end_blocks_when_another_end_is_made_to) {
  const UniqueFd own = *make_doorbell();
  const UniqueFd given = *open_doorbell(own.get());
  ASSERT_EQ(::fcntl(given.get(), F_SETFL, 0), 0);
  const UniqueFd rung = *open_doorbell(given.get());
  drain_doorbell(own.get());
  for (int i = 0; i < 100'000; ++i) ring_doorbell(rung.get());
  ring_doorbell(own.get());
  EXPECT_TRUE(is_readable(own));
  drain_doorbell(own.get());
}

TEST(Doorbell, can_be_rung_when_its_owner_has_gone) {
  UniqueFd own = *make_doorbell();
  const UniqueFd given = *open_doorbell(own.get());
  own.reset();
  for (int i = 0; i < 100'000; ++i) ring_doorbell(given.get());  // no SIGPIPE
}

TEST(Doorbell, nothing_but_a_pipe_is_opened) {
  const UniqueFd event(::eventfd(0, EFD_CLOEXEC));
  const UniqueFd file(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const std::string path = "/tmp/aperture-doorbell-" + std::to_string(::getpid());
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const UniqueFd fifo(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  ::unlink(path.c_str());
  for (const int fd : {event.get(), file.get(), fifo.get(), -1}) {
    EXPECT_EQ(open_doorbell(fd).error(), Errc::protocol) << fd;
  }
}

}  // namespace
}  // namespace aperture
