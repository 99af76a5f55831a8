// The book of key numbers: see mr_keys.hpp. It is made with the first key and never freed, since
// objects may outlive whatever would free it.
#include "verbs/mr_keys.hpp"

#include <cassert>
#include <new>

#include "base/no_throw.hpp"
#include "base/per_process.hpp"
#include "base/random.hpp"

namespace aperture::verbs {

protect::KeyNumbers* key_numbers() noexcept {
  protect::KeyNumbers* book = nullptr;
  [[maybe_unused]] const Status s = no_throw([&] {
    static constinit PerProcess<protect::KeyNumbers> made;
    auto found = made.get([]() -> Result<protect::KeyNumbers*> {
      auto created = protect::KeyNumbers::create();
      if (!created) return created.error();  // not made: the next one to ask tries again
      return std::move(created).value().release();
    });
    if (found) book = *found;
  });
  return book;
}

KeyNumber::~KeyNumber() {
  if (number_) key_numbers()->give_back(*number_);
}

bool KeyNumber::draw() noexcept {
  assert(!number_);  // it would never be given back
  if (key_numbers() == nullptr) return false;
  auto taken = key_numbers()->take();
  if (!taken.ok()) return false;
  number_ = *taken;
  return true;
}

uint32_t KeyNumber::first_key() const noexcept {
  assert(number_);
  return protect::verbs_key(*number_, static_cast<uint8_t>(random_u64()));
}

void KeyNumber::give_back(uint32_t key) noexcept {
  key_numbers()->give_back(protect::number_of_key(key));
}

}  // namespace aperture::verbs
