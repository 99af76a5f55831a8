// Queue pair numbers: which are given, when they come again, and the ports behind them.
#include "nic/qp_numbers.hpp"

#include <set>

#include "nic/side.hpp"

namespace aperture::nic::test {
namespace {

std::vector<Address> here() {
  return {Address::v4(0x7f000001, 0), Address::v4(0x7f000002, 0)};
}

std::vector<QpNumber> take(QpNumbers& numbers, size_t count) {
  std::vector<QpNumber> taken;
  for (size_t i = 0; i < count; ++i) {
    auto number = numbers.take();
    EXPECT_TRUE(number.ok()) << describe(number.error());
    if (!number) break;
    taken.push_back(*number);
  }
  return taken;
}

TEST(QpNumbers, name_a_port_and_an_index_that_can_be_listened_at) {
  QpNumbers numbers(here());
  const QpNumber number = take(numbers, 1).at(0);
  EXPECT_EQ(number >> 24, 0u);
  const Address at = qp_address(Address::v4(0x7f000002, 0), number);
  EXPECT_EQ(at.port, number >> 8);
  EXPECT_EQ(at.index, number & 255);
  EXPECT_NE(at.index, 0);
  EXPECT_EQ(qp_number(at.port, static_cast<uint8_t>(at.index)), number);
  Side side(1, at);
  EXPECT_EQ(side.listen_error(), Errc::ok);
  numbers.give_back(number);
}

TEST(QpNumbers, share_a_port_255_at_a_time) {
  QpNumbers numbers(here());
  const auto taken = take(numbers, 255);
  EXPECT_EQ(numbers.ports(), 1u);
  const auto more = take(numbers, 1);
  EXPECT_EQ(numbers.ports(), 2u);
  std::set<QpNumber> different(taken.begin(), taken.end());
  different.insert(more.begin(), more.end());
  EXPECT_EQ(different.size(), 256u);
  for (const QpNumber n : different) EXPECT_NE(n & 255, 0u);
}

// Of the last port one index fewer is to be had than of its neighbour, and of any.
TEST(QpNumbers, are_never_that_of_multicast) {
  for (const uint16_t port : {uint16_t{0xffff}, uint16_t{0xfffe}, uint16_t{1}}) {
    const auto indices = QpNumbers::indices_of(port);
    std::set<QpNumber> numbers;
    for (const uint8_t index : indices) numbers.insert(qp_number(port, index));
    EXPECT_EQ(indices.size(), numbers.size());
    EXPECT_EQ(numbers.size(), port == 0xffff ? 254u : 255u);
    EXPECT_EQ(numbers.count(0xffffff), 0u);
    EXPECT_GT(*numbers.begin(), 1u);
  }
}

TEST(QpNumbers, come_in_an_order_that_nobody_can_tell) {
  QpNumbers first(here()), second(here());
  const auto order = [](QpNumbers& numbers) {
    auto taken = take(numbers, 255);
    for (QpNumber& n : taken) n &= 255;
    return taken;
  };
  const auto one = order(first);
  EXPECT_FALSE(std::is_sorted(one.begin(), one.end()));
  EXPECT_NE(one, order(second));
}

TEST(QpNumbers, rest_before_they_are_given_again) {
  QpNumbers numbers(here());
  const auto kept = take(numbers, 255);
  numbers.give_back(kept[7]);
  EXPECT_NE(take(numbers, 1).at(0), kept[7]) << "another port rather than that";
  std::vector<QpNumber> last;
  for (size_t i = 0; i < 2000; ++i) {
    const QpNumber n = take(numbers, 1).at(0);
    EXPECT_EQ(std::count(last.begin(), last.end(), n), 0) << i;
    numbers.give_back(n);
    last.push_back(n);
    if (last.size() > QpNumbers::kRest) last.erase(last.begin());
  }
  EXPECT_LE(numbers.ports(), 3u);
}

TEST(QpNumbers, leave_one_empty_port_open_until_it_is_closed) {
  QpNumbers numbers(here());
  const auto taken = take(numbers, 600);
  EXPECT_EQ(numbers.ports(), 3u);
  EXPECT_EQ(contact().census().doorways, 3u);
  for (const QpNumber n : taken) numbers.give_back(n);
  EXPECT_EQ(numbers.ports(), 1u);
  EXPECT_EQ(contact().census().doorways, 1u);
  numbers.close_idle();
  EXPECT_EQ(numbers.ports(), 0u);
  EXPECT_EQ(contact().census().doorways, 0u);
  const auto again = take(numbers, 1);
  numbers.close_idle();
  EXPECT_EQ(numbers.ports(), 1u) << "it is in use";
}

TEST(QpNumbers, that_were_not_taken_are_not_given_back) {
  QpNumbers numbers(here());
  const QpNumber taken = take(numbers, 1).at(0);
  for (const QpNumber n :
       {QpNumber{0}, taken ^ 1, taken ^ 0x100, taken | 0x1000000, ~QpNumber{0}}) {
    numbers.give_back(n);
  }
  numbers.close_idle();
  EXPECT_EQ(numbers.ports(), 1u);
  numbers.give_back(taken);
  numbers.give_back(taken);
  EXPECT_EQ(take(numbers, 255).size(), 255u);
}

TEST(QpNumbers, do_without_an_address_that_has_gone) {
  auto ips = here();
  ips.push_back(Address::v4(0xc0000201, 0));  // 192.0.2.1, for documentation
  QpNumbers numbers(ips);
  const QpNumber number = take(numbers, 1).at(0);
  Side side(1, qp_address(ips[0], number));
  EXPECT_EQ(side.listen_error(), Errc::ok);
  QpNumbers nowhere({ips[2]});
  EXPECT_FALSE(nowhere.take().ok());
}

TEST(QpNumbers, of_the_process_are_reached_at_127_0_0_1) {
  QpNumbers& numbers = QpNumbers::instance();
  const QpNumber number = take(numbers, 1).at(0);
  {
    Side side(1, qp_address(loopback_v4(), number));
    EXPECT_EQ(side.listen_error(), Errc::ok);
  }
  numbers.give_back(number);
  numbers.close_idle();
  EXPECT_EQ(contact().census().doorways, 0u);
}

}  // namespace
}  // namespace aperture::nic::test
