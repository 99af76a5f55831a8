// The setting APERTURE_MR_MODE while somebody calls fi_getinfo. Header only: the provider's tests
// use it too. One thread at a time: it changes the environment.
#pragma once

#include <rdma/fabric.h>

#include <cstdlib>
#include <optional>
#include <string>

namespace aperture {

inline constexpr struct {
  int bit;
  const char* word;
} kMrWords[] = {
    {FI_MR_LOCAL, "local"},         {FI_MR_RAW, "raw"},           {FI_MR_VIRT_ADDR, "virt_addr"},
    {FI_MR_ALLOCATED, "allocated"}, {FI_MR_PROV_KEY, "prov_key"}, {FI_MR_MMU_NOTIFY, "mmu_notify"},
    {FI_MR_RMA_EVENT, "rma_event"}, {FI_MR_ENDPOINT, "endpoint"}, {FI_MR_HMEM, "hmem"}};

// The setting that demands these mr_mode bits; others are passed over.
inline std::string mr_words(int bits) {
  std::string out;
  for (const auto& w : kMrWords) {
    if ((bits & w.bit) == 0) continue;
    if (!out.empty()) out += ',';
    out += w.word;
  }
  return out.empty() ? "none" : out;
}

// Sets it, and puts back what was there.
class Demand {
 public:
  explicit Demand(int bits) : Demand(mr_words(bits)) {}
  explicit Demand(const std::string& words) : Demand() { ::setenv(kName, words.c_str(), 1); }
  Demand() {  // sets nothing
    if (const char* value = std::getenv(kName); value != nullptr) before_ = value;
  }
  ~Demand() {
    if (before_) {
      ::setenv(kName, before_->c_str(), 1);
    } else {
      ::unsetenv(kName);
    }
  }
  Demand(const Demand&) = delete;
  Demand& operator=(const Demand&) = delete;

 private:
  static constexpr const char* kName = "APERTURE_MR_MODE";
  std::optional<std::string> before_;
};

}  // namespace aperture
