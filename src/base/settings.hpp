// What a user sets by the environment: every variable of ours with its legal values, in one table
// (settings.cpp). Both doors and the `aperture` command ask here. Any thread; no state but the
// environment.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace aperture {

// What APERTURE_SILENCE_MS may be.
inline constexpr uint64_t kShortestSilenceMs = 1'000, kLongestSilenceMs = 3'600'000;

// Whether the setting has that word, which is one of its words in the table.
bool setting_is(const char* name, const char* word) noexcept;

// What the setting has, or nullptr: unset and empty are the same.
const char* setting_text(const char* name) noexcept;

// 0 where it is unset, or no number.
uint64_t setting_number(const char* name) noexcept;

// Whether the setting may have that value. An empty one is as good as none.
bool is_legal_setting(const char* name, const char* value);

// A sentence for each variable in `environment` (as environ(7) has it) that is a setting of ours
// with a value that means nothing, or that is nearly spelt like one.
std::vector<std::string> faults_of_settings(char* const* environment);

// Says those faults on stderr, once in the life of the process; only APERTURE_LOG=off keeps them
// from being said. What opens a door calls it, so that a setting need not be used to be looked at.
// What the doors themselves refuse (a mode of registration, an interface) is left to them.
void check_settings() noexcept;

}  // namespace aperture
