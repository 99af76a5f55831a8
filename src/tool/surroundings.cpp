// Which variables lead to Aperture: see surroundings.hpp. Sources: fabric(7) for FI_*, the manuals
// of Open MPI 4.1 and 5.0 for OMPI_* and PRTE_*. Variables reach an MPI job's ranks because the
// launcher passes its own on.
#include "tool/surroundings.hpp"

#include <cstdlib>
#include <span>
#include <sstream>

namespace aperture::tool {

namespace {

// A setting that chooses among components: made if the user has not, validated if he has.
struct Choice {
  const char* variable;
  const char* value;
  const char* who;             // whom it keeps from choosing Aperture, for the note; may be nobody
  const char* list = nullptr;  // what is set, if that is more than the value that must be in it
};

constexpr Choice kChoices[] = {
    {"FI_PROVIDER", "aperture", "libfabric"},
    {"OMPI_MCA_pml", "cm", "Open MPI"},
    {"OMPI_MCA_mtl", "ofi", "Open MPI"},
    {"OMPI_MCA_mtl_ofi_provider_include", "aperture", "Open MPI"},
};

// What leads MPI windows there: Open MPI's osc rdma over btl ofi, beside which messages go over btl
// ofi too, since Open MPI 5 has no windows beside mtl ofi. Without network atomics in accumulate:
// btl ofi of Open MPI 4.1 aborts on bitwise and logical ones, so compare-and-swap serves instead.
constexpr Choice kOneSidedChoices[] = {
    {"FI_PROVIDER", "aperture", "libfabric"},
    {"OMPI_MCA_pml", "ob1", "Open MPI"},
    {"OMPI_MCA_osc", "rdma", "Open MPI"},
    {"OMPI_MCA_btl", "ofi", "Open MPI", "self,ofi"},
    {"OMPI_MCA_btl_ofi_provider_include", "aperture", "Open MPI"},
    {"OMPI_MCA_btl_ofi_mode", "2", "Open MPI"},
    {"OMPI_MCA_osc_rdma_acc_use_amo", "0", nullptr},
};

// Leave to do what a laptop or a container needs: more ranks than cores, as root. The launcher of
// Open MPI 5 (PRRTE) has a setting of its own for the first.
struct Permission {
  const char* variable;
  const char* value;
  bool for_root;
};

constexpr Permission kPermissions[] = {
    {"OMPI_MCA_rmaps_base_oversubscribe", "1", false},
    {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe", false},
    {"OMPI_ALLOW_RUN_AS_ROOT", "1", true},
    {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", true},
};

// What makes the provider speak: APERTURE_EXPLAIN has it say why a fi_getinfo found nothing to
// whoever asks, the rest is a matter of the log.
void add_explanations(const Lookup& lookup, Surroundings& out) {
  out.settings.emplace_back("APERTURE_EXPLAIN", "1");
  const auto is_set = [&](const char* name) {
    const char* value = lookup(name);
    return value != nullptr && *value != '\0';
  };
  const auto speaks = [](const std::string& value) {
    return value == "warn" || value == "info" || value == "trace" || value == "debug";
  };
  if (is_set("APERTURE_LOG")) {
    if (std::string(lookup("APERTURE_LOG")) != "off") return;  // what is no level is taken as warn
    out.notes.emplace_back(
        "APERTURE_LOG=off is set, so nothing will be explained; unset it, or set it to warn.");
  } else if (!is_set("FI_LOG_LEVEL") || !speaks(lookup("FI_LOG_LEVEL"))) {
    out.settings.emplace_back("APERTURE_LOG", "warn");
  }
}

bool contains(const std::string& list, char separator, const std::string& name) {
  std::istringstream items(list);
  for (std::string item; std::getline(items, item, separator);) {
    if (item == name) return true;
  }
  return false;
}

// Ours first, then what the user has; if he has nothing, what libfabric would have scanned. A
// leading '@' ("prefer by order of discovery") stays in front.
std::string provider_path(const Place& place, const char* current) {
  std::string rest = current != nullptr && *current != '\0' ? current : place.libfabric_folder;
  std::string mark;
  if (!rest.empty() && rest.front() == '@') {
    mark = "@";
    rest.erase(0, 1);
  }
  if (rest.empty()) return mark + place.provider_folder;
  if (contains(rest, ':', place.provider_folder)) return mark + rest;
  return mark + place.provider_folder + ":" + rest;
}

std::string note_on(const Choice& choice, const std::string& current) {
  return std::string(choice.variable) + "=" + current + " is set, so " + choice.who +
         " will not choose Aperture; unset it, or set it to " +
         (choice.list != nullptr ? choice.list : choice.value) + ".";
}

// What the user has, behind our part; once.
std::string in_front(const std::string& part, const char* current) {
  if (current == nullptr || *current == '\0') return part;
  return contains(current, ':', part) ? std::string(current) : part + ":" + current;
}

}  // namespace

void add_verbs_door(const std::string& library, const std::string& real_folder,
                    const Lookup& lookup, Surroundings& out) {
  out.settings.emplace_back("LD_PRELOAD", in_front(library, lookup("LD_PRELOAD")));
  out.settings.emplace_back("LD_LIBRARY_PATH", in_front(real_folder, lookup("LD_LIBRARY_PATH")));
  out.settings.emplace_back("ASAN_OPTIONS",
                            in_front("verify_asan_link_order=0", lookup("ASAN_OPTIONS")));
}

bool list_admits(const std::string& list, const std::string& name) {
  if (!list.empty() && list.front() == '^') return !contains(list.substr(1), ',', name);
  return contains(list, ',', name);
}

Surroundings plan(const Place& place, const Lookup& lookup) {
  Surroundings out;
  out.settings.emplace_back("FI_PROVIDER_PATH", provider_path(place, lookup("FI_PROVIDER_PATH")));
  const auto choices = place.one_sided ? std::span<const Choice>(kOneSidedChoices) : kChoices;
  for (const Choice& choice : choices) {
    const char* current = lookup(choice.variable);
    if (current == nullptr || *current == '\0') {
      out.settings.emplace_back(choice.variable,
                                choice.list != nullptr ? choice.list : choice.value);
    } else if (choice.who != nullptr && !list_admits(current, choice.value)) {
      out.notes.push_back(note_on(choice, current));
    }
  }
  const char* excluded = lookup("OMPI_MCA_mtl_ofi_provider_exclude");
  if (excluded != nullptr && contains(excluded, ',', "aperture")) {
    out.notes.push_back(
        "OMPI_MCA_mtl_ofi_provider_exclude names aperture, so Open MPI will not choose it; unset "
        "it.");
  }
  if (place.explain) add_explanations(lookup, out);
  if (!place.verbs_library.empty()) {
    add_verbs_door(place.verbs_library, place.real_folder, lookup, out);
  }
  for (const Permission& permission : kPermissions) {
    if (permission.for_root && !place.root) continue;
    if (lookup(permission.variable) != nullptr) continue;
    out.settings.emplace_back(permission.variable, permission.value);
  }
  return out;
}

bool apply(const Surroundings& surroundings) {
  for (const auto& [name, value] : surroundings.settings) {
    if (::setenv(name.c_str(), value.c_str(), 1) != 0) return false;
  }
  return true;
}

}  // namespace aperture::tool
