// The software NIC of a verbs context: see verbs_nic.hpp.
#include "nic/verbs_nic.hpp"

#include <cassert>
#include <new>

#include "base/no_throw.hpp"
#include "nic/rc_verbs_qp.hpp"
#include "nic/ud_verbs_qp.hpp"

namespace aperture::nic {

namespace {

class Nic final : public VerbsNic {
 public:
  explicit Nic(std::unique_ptr<Engine> engine) noexcept : engine_(std::move(engine)) {
    assert(engine_ != nullptr);
  }

  Engine& engine() noexcept override { return *engine_; }
  ib::WindowBook& windows() noexcept override { return windows_; }
  Result<std::unique_ptr<VerbsQp>> make_qp(ib::QpSpec spec) noexcept override;

 private:
  std::unique_ptr<Engine> engine_;
  ib::WindowBook windows_;
};

Result<std::unique_ptr<VerbsQp>> Nic::make_qp(ib::QpSpec spec) noexcept {
  spec.keys = &keys();
  spec.windows = &windows_;
  if (spec.type == ib::QpType::ud) return UdVerbsQp::create(*engine_, spec);
  return no_throw([&]() -> Result<std::unique_ptr<VerbsQp>> {
    QpNumbers& numbers = QpNumbers::instance();
    auto number = numbers.take();
    if (!number) return number.error();
    spec.qpn = *number;
    assert(spec.events != nullptr && spec.wording != nullptr);
    std::unique_ptr<RcVerbsQp> made;
    try {
      made = std::make_unique<RcVerbsQp>(*engine_, numbers, spec);
    } catch (const std::bad_alloc&) {
      numbers.give_back(*number);
      throw;
    }
    if (Status s = made->start(); !s) return s.error();
    return std::unique_ptr<VerbsQp>(std::move(made));
  });
}

}  // namespace

Result<std::unique_ptr<VerbsNic>> VerbsNic::create() noexcept {
  auto engine = Engine::create({.threaded = true, .auto_progress = true});
  if (!engine) return engine.error();
  auto* made = new (std::nothrow) Nic(*std::move(engine));
  if (made == nullptr) return Errc::no_memory;
  return std::unique_ptr<VerbsNic>(made);
}

}  // namespace aperture::nic
