// The links of an engine: see engine_links.hpp.
#include "nic/engine_links.hpp"

#include <algorithm>
#include <cassert>
#include <new>
#include <utility>

#include "base/no_throw.hpp"
#include "link/faulty/setting.hpp"

namespace aperture::nic {

EngineLinks::~EngineLinks() {
  assert(links_.empty());  // they are owned by what is gone by now
}

Status EngineLinks::make_own(link::tcp::MoverHost& host) noexcept {
  assert(mover_ == nullptr && faults_ == nullptr);
  const Status made = no_throw([&] { mover_ = std::make_shared<link::tcp::Mover>(host); });
  if (!made || link::faulty::configured() == nullptr) return made;
  auto faults = link::faulty::Mover::make();
  if (faults) faults_ = *std::move(faults);
  return faults.error();
}

Status EngineLinks::add(link::Progress& link) noexcept {
  assert(std::find(links_.begin(), links_.end(), &link) == links_.end());
  try {
    links_.push_back(&link);
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
  if (const int fd = link.fd(); fd >= 0) {
    if (Status s = wakers_.watch_asleep(fd); !s) {
      links_.pop_back();
      return s;
    }
  }
  return {};
}

void EngineLinks::remove(link::Progress& link) noexcept {
  if (std::erase(links_, &link) == 0) return;
  if (const int fd = link.fd(); fd >= 0) wakers_.forget(fd);
}

bool EngineLinks::any_needs_polling() const noexcept {
  return std::any_of(links_.begin(), links_.end(),
                     [](const link::Progress* link) { return link->needs_polling(); });
}

}  // namespace aperture::nic
