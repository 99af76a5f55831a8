// What this host allows, as `aperture info` tells it: each fact is found out by trying, not guessed
// from versions. A fact that is a restriction says why, and what lifting it would gain.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace aperture::tool {

struct Fact {
  enum class State { plain, yes, no };

  Fact(std::string json_key, std::string text_label)
      : key(std::move(json_key)), label(std::move(text_label)) {}

  std::string key;    // in JSON: "cma"
  std::string label;  // in text: "CMA"
  State state = State::plain;
  std::string text;     // the fact for people, in a few words
  std::string why_not;  // only with State::no
  std::string gain;     // what a yes would bring; only with State::no
  nlohmann::ordered_json details = nlohmann::ordered_json::object();  // figures, for JSON only
};

// This build and the libfabric of this host. command_folder: see places.hpp.
std::vector<Fact> software_facts(const std::string& command_folder);
// Kernel, processors, limits, and the mechanisms of the data path.
std::vector<Fact> host_facts();
// One of these: copies between processes. error: what trying one came to, an errno or 0; yama: its
// ptrace_scope, where there is Yama; allowed: APERTURE_CMA=allow is set and was heeded in trying.
Fact cma_fact(int error, std::optional<int> yama, bool allowed);

}  // namespace aperture::tool
