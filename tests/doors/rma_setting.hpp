// The settings under which remote access is tried: who the target is, how regions are addressed,
// whether its memory may be reached directly, and whether it polls.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "doors/side.hpp"

namespace aperture::doors {

enum class Reach {
  direct,        // whatever the host allows
  denied,        // APERTURE_CMA=deny in the target
  not_dumpable,  // the kernel denies it (to ordinary users)
  other_user,    // the target is another user's process (when the test runs as root)
};

struct Setting {
  const char* name;
  Topology topology;
  int mr_mode;
  Reach reach = Reach::direct;
  bool target_polls = true;
  fi_progress progress = FI_PROGRESS_UNSPEC;
};

inline void PrintTo(const Setting& s, std::ostream* out) {
  *out << s.name;
}

// Opens the duo of a setting; the target is connected before it goes quiet.
inline Duo open_setting(const Setting& setting, Options options = {}) {
  options.mr_mode = setting.mr_mode;
  options.progress = setting.progress;
  ChildOptions child = child_denying(setting.reach == Reach::denied);
  child.not_dumpable = setting.reach == Reach::not_dumpable;
  if (setting.reach == Reach::other_user && geteuid() == 0) child.uid = 65534;
  Duo duo = make_duo(setting.topology, options, child);
  if (setting.topology != Topology::two_processes) return duo;
  duo.second->receive(90, 1);
  duo.first->send(91, duo.to_second, 1, 1);
  if (duo.second->wait(90).err != 0 || duo.first->wait(91).err != 0)
    throw DoorError("the first message", -FI_EOTHER);
  if (!setting.target_polls) duo.second->progress(false);
  return duo;
}

// A case costs some four times as much under a sanitizer: there those are left out whose way
// through our code others go as well, unless APERTURE_SETTINGS is `all`.
inline bool is_left_out(const Setting& setting) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  const char* const wanted = std::getenv("APERTURE_SETTINGS");
  if (wanted != nullptr && std::strcmp(wanted, "all") == 0) return false;
  for (const char* const name : {"self_scalable", "two_domains_basic", "processes_basic",
                                 "processes_scalable_denied", "processes_not_dumpable"}) {
    if (std::strcmp(setting.name, name) == 0) return true;
  }
#endif
  static_cast<void>(setting);
  return false;
}

// All of them, or those for which a test has something to say.
inline auto all_settings(const std::function<bool(const Setting&)>& applies = nullptr) {
  std::vector<Setting> settings{
      Setting{"self_scalable", Topology::self, 0}, Setting{"self_basic", Topology::self, kBasicMr},
      Setting{"one_domain_scalable", Topology::one_domain, 0},
      Setting{"two_domains_scalable", Topology::two_domains, 0},
      Setting{"two_domains_basic", Topology::two_domains, kBasicMr},
      Setting{"processes_scalable", Topology::two_processes, 0},
      Setting{"processes_basic", Topology::two_processes, kBasicMr},
      Setting{"processes_basic_idle", Topology::two_processes, kBasicMr, Reach::direct, false},
      Setting{"processes_scalable_denied", Topology::two_processes, 0, Reach::denied},
      Setting{"processes_basic_denied", Topology::two_processes, kBasicMr, Reach::denied},
      // denied and idle: somebody has to carry it out there, so progress must be automatic
      Setting{"processes_denied_idle", Topology::two_processes, kBasicMr, Reach::denied, false,
              FI_PROGRESS_AUTO},
      Setting{"processes_auto", Topology::two_processes, 0, Reach::direct, true, FI_PROGRESS_AUTO},
      Setting{"processes_not_dumpable", Topology::two_processes, 0, Reach::not_dumpable},
      Setting{"processes_other_user", Topology::two_processes, 0, Reach::other_user}};
  std::erase_if(settings, is_left_out);
  if (applies) std::erase_if(settings, std::not_fn(applies));
  return testing::ValuesIn(settings);
}

inline std::string setting_name(const testing::TestParamInfo<Setting>& p) {
  return p.param.name;
}

}  // namespace aperture::doors
