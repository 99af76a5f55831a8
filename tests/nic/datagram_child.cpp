// A process with a datagram queue pair, told what to do line by line on its standard input:
//   qpn               its number
//   attach GROUP_HEX  an MGID, 32 digits; detach likewise
//   echo N            answers N messages, to where they came from, polling
//   hear              the next message, without polling: "heard TEXT"
//   silent MS         "silent" if none comes in that time
//   rest MS           does not look at anything in that time: "rested"
//   cpu               milliseconds of processor time that it has used so far
//   quit
#include <sys/resource.h>

#include <cstdio>
#include <iostream>
#include <sstream>

#include "nic/datagram_end.hpp"

namespace {

using namespace aperture;             // NOLINT: a program of one file
using namespace aperture::nic::test;  // NOLINT

Address group_of(const std::string& hex) {
  Address a;
  for (size_t i = 0; i < a.ip.size() && 2 * i + 1 < hex.size(); ++i) {
    a.ip[i] = static_cast<uint8_t>(std::stoul(hex.substr(2 * i, 2), nullptr, 16));
  }
  return a;
}

std::string echo(DatagramEnd& end, int count) {
  for (int i = 0; i < count; ++i) {
    const auto m = end.next();
    if (!m.there) return "lost after " + std::to_string(i);
    if (!end.send(m.to, m.from, m.src_qpn, m.text)) return "no send";
  }
  return "echoed";
}

long cpu_ms() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 +
         (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
}

std::string answer(DatagramEnd& end, const std::string& line) {
  std::istringstream words(line);
  std::string what, rest;
  words >> what >> rest;
  if (what == "qpn") return std::to_string(end.qpn());
  if (what == "attach") {
    return end.verbs_qp->attach_group(group_of(rest), {}).ok() ? "attached" : "refused";
  }
  if (what == "detach") {
    return end.verbs_qp->detach_group(group_of(rest)).ok() ? "detached" : "refused";
  }
  if (what == "echo") return echo(end, std::stoi(rest));
  if (what == "rest") {
    std::this_thread::sleep_for(std::chrono::milliseconds(std::stoi(rest)));
    return "rested";
  }
  if (what == "cpu") return std::to_string(cpu_ms());
  if (what == "hear") {
    const auto m = end.next(false);
    return m.there ? "heard " + m.text : "nothing";
  }
  if (what == "silent") {
    return end.next(false, std::stoi(rest)).there ? "heard something" : "silent";
  }
  return "what?";
}

}  // namespace

int main() {
  DatagramEnd end;
  if (!end.ok) return 1;
  for (std::string line; std::getline(std::cin, line) && line != "quit";) {
    std::puts(answer(end, line).c_str());
    std::fflush(stdout);
  }
  return 0;
}
