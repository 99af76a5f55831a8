// What a loader sees: the module's needs and exports, fi_prov_ini, memory with slack, full tables.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <link.h>
#include <malloc.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_collective.h>

#include "direct.hpp"

namespace aperture::provider_tests {
namespace {

constexpr size_t kSlack = 512;

TEST(Loading, needs_no_libfabric) {
  provider();
  bool seen = false;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* found) {
        if (std::string(info->dlpi_name).find("libfabric.so") != std::string::npos)
          *static_cast<bool*>(found) = true;
        return 0;
      },
      &seen);
  EXPECT_FALSE(seen) << "the module brought libfabric with it";
}

TEST(Loading, exports_its_entry_and_nothing_else) {
  provider();
  void* module = dlopen(module_path().c_str(), RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(module, nullptr);
  EXPECT_NE(dlsym(module, "fi_prov_ini"), nullptr);
  EXPECT_EQ(dlsym(module, "_ZN8aperture9log_levelEv"), nullptr);
  dlclose(module);
}

TEST(Loading, says_who_it_is) {
  const fi_provider& p = provider();
  EXPECT_STREQ(p.name, "aperture");
  EXPECT_GT(p.version, 0u);
  EXPECT_GE(p.fi_version, FI_VERSION(1, 17));
  ASSERT_NE(p.getinfo, nullptr);
  ASSERT_NE(p.fabric, nullptr);
  ASSERT_NE(p.cleanup, nullptr);
}

TEST(Loading, answers_have_slack_behind_each_part) {
  const Answer a = ask(kApi117);
  ASSERT_EQ(a.code, 0);
  const auto slack = [](void* part, size_t size) {
    const size_t usable = malloc_usable_size(part);
    if (usable < size + kSlack) return false;
    const auto* bytes = static_cast<const char*>(part);
    for (size_t i = size; i < size + kSlack; ++i) {
      if (bytes[i] != 0) return false;
    }
    return true;
  };
  EXPECT_TRUE(slack(a.info.get(), sizeof(fi_info)));
  EXPECT_TRUE(slack(a.info->tx_attr, sizeof(fi_tx_attr)));
  EXPECT_TRUE(slack(a.info->rx_attr, sizeof(fi_rx_attr)));
  EXPECT_TRUE(slack(a.info->ep_attr, sizeof(fi_ep_attr)));
  EXPECT_TRUE(slack(a.info->domain_attr, sizeof(fi_domain_attr)));
  EXPECT_TRUE(slack(a.info->fabric_attr, sizeof(fi_fabric_attr)));
  EXPECT_EQ(a.info->fabric_attr->prov_name, nullptr) << "libfabric writes it";
}

TEST(Loading, a_call_without_a_place_for_the_answer_is_refused) {
  EXPECT_EQ(provider().getinfo(kApi117, nullptr, nullptr, 0, nullptr, nullptr), -FI_EINVAL);
  fid_fabric* fabric = nullptr;
  EXPECT_EQ(provider().fabric(nullptr, &fabric, nullptr), -FI_EINVAL);
  fi_fabric_attr attr{};
  EXPECT_EQ(provider().fabric(&attr, nullptr, nullptr), -FI_EINVAL);
  attr.name = const_cast<char*>("another");
  EXPECT_EQ(provider().fabric(&attr, &fabric, nullptr), -FI_EINVAL);
  EXPECT_EQ(fabric, nullptr);
}

// Every slot behind `size` is a function. There may be more than our headers know: those of newer
// applications.
template <typename Ops>
void expect_full(const Ops* ops, const char* name) {
  ASSERT_NE(ops, nullptr) << name;
  EXPECT_GE(ops->size, sizeof(Ops)) << name;
  const auto* slots = reinterpret_cast<void* const*>(ops);
  for (size_t i = 1; i < ops->size / sizeof(void*); ++i) {
    EXPECT_NE(slots[i], nullptr) << name << " slot " << i;
  }
}

TEST(Loading, every_slot_of_every_table_is_filled) {
  Bench b;
  for (int enabled = 0; enabled < 2; ++enabled) {
    expect_full(b.ep->fid.ops, "ep.fid");
    expect_full(b.ep->ops, "ep");
    expect_full(b.ep->cm, "ep.cm");
    expect_full(b.ep->msg, "ep.msg");
    expect_full(b.ep->rma, "ep.rma");
    expect_full(b.ep->tagged, "ep.tagged");
    expect_full(b.ep->atomic, "ep.atomic");
    expect_full(b.ep->collective, "ep.collective");
    if (enabled == 0) b.enable();
  }
  expect_full(b.fabric->fid.ops, "fabric.fid");
  expect_full(b.fabric->ops, "fabric");
  expect_full(b.domain->fid.ops, "domain.fid");
  expect_full(b.domain->ops, "domain");
  expect_full(b.domain->mr, "domain.mr");
  expect_full(b.av->fid.ops, "av.fid");
  expect_full(b.av->ops, "av");
  expect_full(b.cq->fid.ops, "cq.fid");
  expect_full(b.cq->ops, "cq");
  expect_full(b.cntr->fid.ops, "cntr.fid");
  expect_full(b.cntr->ops, "cntr");
}

}  // namespace
}  // namespace aperture::provider_tests
