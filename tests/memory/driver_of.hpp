// A driver of ours beside the application's own use of the vendor's library, for tests that are the
// same for all kinds.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>

#include "memory/device_memory.hpp"
#include "memory/driver.hpp"

namespace aperture::memory {

inline Kind kind_of(test::DeviceKind kind) {
  return static_cast<Kind>(kind);
}

// What was answered to a registration.
struct Added {
  std::shared_ptr<const Registration> registration;  // null: refused
  Errc error = Errc::ok;
  std::string why;
};
struct Refused {
  Errc error;
  const char* in_why;  // words of the sentence
};
inline bool operator==(const Added& added, const Refused& refused) {
  return added.registration == nullptr && added.error == refused.error &&
         added.why.find(refused.in_why) != std::string::npos;
}
inline void PrintTo(const Added& added, std::ostream* to) {
  *to << describe(added.error) << ": " << added.why;
}
inline void PrintTo(const Refused& refused, std::ostream* to) {
  *to << describe(refused.error) << ": ... " << refused.in_why << " ...";
}

inline Added add_to(Driver& driver, void* at, size_t len, int device = Driver::kAnyDevice) {
  const char* why = nullptr;
  auto added = driver.add(at, len, device, why);
  if (added) return {std::move(*added), Errc::ok, ""};
  return {nullptr, added.error(), why != nullptr ? why : "(nothing)"};
}

}  // namespace aperture::memory

namespace aperture::test {

class DriverOf : public testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    static std::array<std::unique_ptr<Devices>, 3> opened;
    auto& ours = opened[static_cast<size_t>(GetParam())];
    std::string said;
    if (ours == nullptr) ours = Devices::open(GetParam(), said);
    ASSERT_NE(ours, nullptr) << said;
    devices_ = ours.get();
    devices_->fail(0);
    const char* why = "";
    auto driver = memory::driver(kind(), why);
    ASSERT_TRUE(driver) << why;
    driver_ = *driver;
  }

  memory::Kind kind() const { return memory::kind_of(GetParam()); }
  Devices& devices() const { return *devices_; }
  memory::Driver& driver() const { return *driver_; }
  memory::Added add(void* at, size_t len, int device = memory::Driver::kAnyDevice) const {
    return memory::add_to(*driver_, at, len, device);
  }

 private:
  Devices* devices_ = nullptr;
  memory::Driver* driver_ = nullptr;
};

inline std::string name_of_param(const testing::TestParamInfo<DeviceKind>& info) {
  return name_of(info.param);
}

}  // namespace aperture::test
