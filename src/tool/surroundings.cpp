// Which variables lead to Aperture: see surroundings.hpp. Sources: fabric(7) for FI_*, the manuals
// of Open MPI 4.1 and 5.0 for OMPI_* and PRTE_*. Variables reach an MPI job's ranks because the
// launcher passes its own on.
#include "tool/surroundings.hpp"

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <span>
#include <sstream>

#include "base/spelling.hpp"

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

// What is asked for by hand comes before a setting that may be an old one.
void add_faults(const std::string& faults, const Lookup& lookup, Surroundings& out) {
  out.settings.emplace_back("APERTURE_FAULT", faults);
  const char* const before = lookup("APERTURE_FAULT");
  if (before == nullptr || *before == '\0' || faults == before) return;
  out.notes.push_back("APERTURE_FAULT=" + std::string(before) +
                      " is set, and --fault takes its place.");
}

size_t count(const std::string& list, char separator, const std::string& name) {
  size_t n = 0;
  std::istringstream items(list);
  for (std::string item; std::getline(items, item, separator);) {
    if (item == name) ++n;
  }
  return n;
}

bool contains(const std::string& list, char separator, const std::string& name) {
  return count(list, separator, name) != 0;
}

// What divides each list of paths that a part of ours goes into: ld.so(8), fabric(7).
struct Divided {
  const char* variable;
  const char* characters;
};

constexpr Divided kDivided[] = {
    {"LD_PRELOAD", " :"},
    {"LD_LIBRARY_PATH", ":;"},
    {"FI_PROVIDER_PATH", ":"},
};

const char* name_of_character(char c) {
  switch (c) {
    case ' ': return "a space";
    case ':': return "a colon";
    default: return "a semicolon";
  }
}

// Ours first, then what the user has; if he has nothing, what libfabric would have scanned. A
// leading '@' ("prefer by order of discovery") stays in front. Ours stands there once for each
// name that it answers under, as libfabric asks for one each time that it finds the provider.
std::string provider_path(const Place& place, const char* current) {
  std::string rest = current != nullptr && *current != '\0' ? current : place.libfabric_folder;
  std::string mark;
  if (!rest.empty() && rest.front() == '@') {
    mark = "@";
    rest.erase(0, 1);
  }
  std::string path = mark;
  for (size_t n = count(rest, ':', place.provider_folder); n < (place.as.empty() ? 1u : 2u); ++n) {
    path += place.provider_folder + ":";
  }
  path += rest;
  if (rest.empty()) path.pop_back();
  return path;
}

// " ('x' is perhaps ...)" where an item of the list is nearly the name that it should have.
std::string misspelt_in(const std::string& list, const std::string& name) {
  std::istringstream items(list);
  for (std::string item; std::getline(items, item, ',');) {
    if (!is_nearly(item, name)) continue;
    return std::string(" ('")
        .append(item)
        .append("' is perhaps ")
        .append(name)
        .append(", misspelt)");
  }
  return {};
}

// A provider list that leads past ours to libfabric's verbs provider leads to the device.
bool leads_to_device(const Place& place, const Choice& choice, const std::string& current) {
  return !place.verbs_library.empty() && choice.variable == std::string("FI_PROVIDER") &&
         current.front() != '^' && ("," + current).find(",verbs") != std::string::npos;
}

std::string note_on(const Place& place, const Choice& choice, const std::string& current) {
  if (leads_to_device(place, choice, current)) {
    return "FI_PROVIDER=" + current +
           " is set, so libfabric goes over aperture0 by its own verbs provider; unset it to have "
           "the provider aperture.";
  }
  return std::string(choice.variable) + "=" + current + " is set, so " + choice.who +
         " will not choose Aperture" + misspelt_in(current, choice.value) +
         "; unset it, or set it to " + (choice.list != nullptr ? choice.list : choice.value) + ".";
}

// What the user has, behind our part; once.
std::string in_front(const std::string& part, const char* current) {
  if (current == nullptr || *current == '\0') return part;
  return contains(current, ':', part) ? std::string(current) : part + ":" + current;
}

// A program with AddressSanitizer insists on standing before all that is preloaded.
void bear_with_sanitizers(const Lookup& lookup, Surroundings& out) {
  out.settings.emplace_back("ASAN_OPTIONS",
                            in_front("verify_asan_link_order=0", lookup("ASAN_OPTIONS")));
}

}  // namespace

std::string why_not_in_list(const char* variable, const std::string& path) {
  for (const Divided& list : kDivided) {
    if (list.variable != std::string(variable)) continue;
    const size_t at = path.find_first_of(list.characters);
    if (at == std::string::npos) return {};
    return "'" + path + "' has " + name_of_character(path[at]) + " in it, and " + variable +
           " is divided there";
  }
  assert(false);  // no list of paths
  return {};
}

void add_verbs_door(const std::string& library, const std::string& folder, const Lookup& lookup,
                    Surroundings& out) {
  out.settings.emplace_back("LD_PRELOAD", in_front(library, lookup("LD_PRELOAD")));
  out.settings.emplace_back("LD_LIBRARY_PATH", in_front(folder, lookup("LD_LIBRARY_PATH")));
  bear_with_sanitizers(lookup, out);
}

namespace {

// Behind our other library, if that is preloaded, and before what the user has.
void preload_behind(const std::string& library, const Lookup& lookup, Surroundings& out) {
  for (auto& [name, value] : out.settings) {
    if (name != "LD_PRELOAD") continue;
    if (!contains(value, ':', library))
      value.insert(std::min(value.find(':'), value.size()), ":" + library);
    return;
  }
  out.settings.emplace_back("LD_PRELOAD", in_front(library, lookup("LD_PRELOAD")));
  bear_with_sanitizers(lookup, out);
}

}  // namespace

bool list_admits(const std::string& list, const std::string& name) {
  if (!list.empty() && list.front() == '^') return !contains(list.substr(1), ',', name);
  return contains(list, ',', name);
}

namespace {

// The other name is set anew, as this command line asks for it. libfabric's list of providers has
// to let it through.
void add_other_name(const Place& place, const Lookup& lookup, Surroundings& out) {
  out.settings.emplace_back("APERTURE_AS", place.as);
  const char* current = lookup("FI_PROVIDER");
  if (current == nullptr || *current == '\0' || list_admits(current, place.as)) return;
  out.notes.push_back(std::string("FI_PROVIDER=") + current + " is set and leaves out " + place.as +
                      ", so nothing is answered under that name; unset it, or add " + place.as +
                      " to it.");
}

// What a choice is made to be where the user has not made it. as: another name to answer under.
std::string value_of(const Choice& choice, const std::string& as) {
  const std::string value = choice.list != nullptr ? choice.list : choice.value;
  const bool names_providers = choice.variable == std::string("FI_PROVIDER");
  return names_providers && !as.empty() ? value + "," + as : value;
}

bool is_chosen_so(std::span<const Choice> choices, const std::string& name,
                  const std::string& value, const std::string& as) {
  return std::any_of(choices.begin(), choices.end(), [&](const Choice& choice) {
    return name == choice.variable &&
           (value == value_of(choice, "") || value == value_of(choice, as));
  });
}

// Of the names that an outer run gave, those whose values are such as a run chooses: what has
// another one by now is the user's.
std::vector<std::string> still_chosen(const std::string& names, const Lookup& lookup) {
  const auto text_of = [&](const char* name) {
    const char* value = lookup(name);
    return std::string(value != nullptr ? value : "");
  };
  const std::string as = text_of("APERTURE_AS");
  std::vector<std::string> out;
  std::istringstream items(names);
  for (std::string name; std::getline(items, name, ',');) {
    const std::string value = text_of(name.c_str());
    // both are set together, so where they disagree one has been set by hand
    const bool is_other_name = name == "APERTURE_AS" && list_admits(text_of("FI_PROVIDER"), as);
    if (is_other_name || is_chosen_so(kChoices, name, value, as) ||
        is_chosen_so(kOneSidedChoices, name, value, as)) {
      out.push_back(name);
    }
  }
  return out;
}

// Says to runs within this one what of it is a choice, and takes back what an outer run chose and
// this one does not.
void tell_choices(const Place& place, const std::vector<std::string>& earlier, Surroundings& out) {
  std::string chosen;
  for (const auto& [name, value] : out.settings) {
    if (name != "APERTURE_AS" && !is_chosen_so(kChoices, name, value, place.as) &&
        !is_chosen_so(kOneSidedChoices, name, value, place.as)) {
      continue;
    }
    chosen += (chosen.empty() ? "" : ",") + name;
  }
  for (const std::string& name : earlier) {
    if (!contains(chosen, ',', name)) out.unset.push_back(name);
  }
  if (!chosen.empty()) {
    out.settings.emplace_back(kChosenVariable, chosen);
  } else if (!place.chosen.empty()) {
    out.unset.emplace_back(kChosenVariable);
  }
}

void add_provider(const Place& place, const Lookup& lookup, Surroundings& out) {
  const std::string divided = why_not_in_list("FI_PROVIDER_PATH", place.provider_folder);
  if (!divided.empty()) {
    out.notes.push_back(divided +
                        ", so libfabric will not find the provider; install Aperture in "
                        "another folder.");
    return;
  }
  out.settings.emplace_back("FI_PROVIDER_PATH", provider_path(place, lookup("FI_PROVIDER_PATH")));
}

void add_explain_library(const Place& place, const Lookup& lookup, Surroundings& out) {
  const std::string divided = why_not_in_list("LD_PRELOAD", place.explain_library);
  if (!divided.empty()) {
    out.notes.push_back(divided +
                        ", so what libfabric itself refuses is not explained; install "
                        "Aperture in another folder.");
    return;
  }
  preload_behind(place.explain_library, lookup, out);
}

}  // namespace

Surroundings plan(const Place& asked, const Lookup& environment) {
  Surroundings out;
  const std::vector<std::string> earlier = still_chosen(asked.chosen, environment);
  const auto was_chosen = [&](const char* name) {
    return std::find(earlier.begin(), earlier.end(), name) != earlier.end();
  };
  const Lookup lookup = [&](const char* name) {
    return was_chosen(name) ? nullptr : environment(name);
  };
  Place place = asked;
  // a script that starts its programs by `aperture run` is run under another name as a whole
  if (place.as.empty() && was_chosen("APERTURE_AS")) place.as = environment("APERTURE_AS");
  add_provider(place, lookup, out);
  const auto choices = place.one_sided ? std::span<const Choice>(kOneSidedChoices) : kChoices;
  for (const Choice& choice : choices) {
    const char* current = lookup(choice.variable);
    if (current == nullptr || *current == '\0') {
      out.settings.emplace_back(choice.variable, value_of(choice, place.as));
    } else if (choice.who != nullptr && !list_admits(current, choice.value)) {
      out.notes.push_back(note_on(place, choice, current));
    }
  }
  const char* excluded = lookup("OMPI_MCA_mtl_ofi_provider_exclude");
  if (excluded != nullptr && contains(excluded, ',', "aperture")) {
    out.notes.push_back(
        "OMPI_MCA_mtl_ofi_provider_exclude names aperture, so Open MPI will not choose it; unset "
        "it.");
  }
  if (!place.as.empty()) add_other_name(place, lookup, out);
  if (!place.faults.empty()) add_faults(place.faults, lookup, out);
  if (place.explain) add_explanations(lookup, out);
  if (!place.verbs_library.empty()) {
    add_verbs_door(place.verbs_library, place.verbs_folder, lookup, out);
  }
  if (place.explain && !place.explain_library.empty()) {
    add_explain_library(place, lookup, out);
  }
  for (const Permission& permission : kPermissions) {
    if (permission.for_root && !place.root) continue;
    if (lookup(permission.variable) != nullptr) continue;
    out.settings.emplace_back(permission.variable, permission.value);
  }
  tell_choices(place, earlier, out);
  return out;
}

bool apply(const Surroundings& surroundings) {
  for (const std::string& name : surroundings.unset) ::unsetenv(name.c_str());
  for (const auto& [name, value] : surroundings.settings) {
    if (::setenv(name.c_str(), value.c_str(), 1) != 0) return false;
  }
  return true;
}

}  // namespace aperture::tool
