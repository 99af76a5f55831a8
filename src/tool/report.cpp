// Laying out the facts: see report.hpp.
#include "tool/report.hpp"

#include <algorithm>

namespace aperture::tool {

namespace {

constexpr const char* mark(Fact::State state) {
  switch (state) {
    case Fact::State::plain: return "     ";
    case Fact::State::yes: return "yes  ";
    case Fact::State::no: return "no   ";
  }
  return "";
}

}  // namespace

std::string as_text(const std::vector<Fact>& facts) {
  size_t width = 0;
  for (const Fact& fact : facts) width = std::max(width, fact.label.size());
  std::string out;
  const std::string below(width + 7, ' ');
  for (const Fact& fact : facts) {
    out += fact.label + std::string(width - fact.label.size() + 2, ' ') + mark(fact.state) +
           fact.text + "\n";
    if (!fact.why_not.empty()) out += below + "why not: " + fact.why_not + "\n";
    if (!fact.gain.empty()) out += below + "with it: " + fact.gain + "\n";
  }
  return out;
}

std::string as_json(const std::vector<Fact>& facts) {
  nlohmann::ordered_json out;
  for (const Fact& fact : facts) {
    nlohmann::ordered_json member = nlohmann::ordered_json::object();
    if (fact.state != Fact::State::plain) member["available"] = fact.state == Fact::State::yes;
    if (!fact.why_not.empty()) member["why_not"] = fact.why_not;
    if (!fact.gain.empty()) member["gain"] = fact.gain;
    member.update(fact.details);
    out[fact.key] = member;
  }
  // a path may have bytes that are no UTF-8, which JSON cannot hold: U+FFFD stands for them
  return out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace aperture::tool
