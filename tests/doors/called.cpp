// Asking and answering between processes: see called.hpp.
#include "doors/called.hpp"

#include <cstdio>

namespace aperture::doors {
namespace {

struct Failure {
  char text[200] = {};
};

// Where all methods are counted from.
int64_t origin() {
  return reinterpret_cast<int64_t>(&serve_calls);
}

Message carried_out(void* object, Message& question) noexcept {
  Message answer;
  Failure failure;
  try {
    question.rewind();
    reinterpret_cast<Runner>(origin() + question.what)(object, question, answer);
    return answer;
  } catch (const DoorError& e) {
    answer.what = e.code() < 0 ? e.code() : -FI_EOTHER;
    std::snprintf(failure.text, sizeof failure.text, "%s", e.what());
  } catch (const std::exception& e) {
    answer.what = -FI_EOTHER;
    std::snprintf(failure.text, sizeof failure.text, "%s", e.what());
  }
  answer.rewind();
  answer.put(failure);
  return answer;
}

}  // namespace

void ask_child(Control& control, Runner method, Message question) {
  question.what = reinterpret_cast<int64_t>(method) - origin();
  if (!control.put(question)) throw DoorError("asking the child process", -FI_ENOTCONN);
}

Message answer_of_child(Control& control, int timeout_ms) {
  const bool answered = pump_until([&] { return control.ready(); }, timeout_ms);
  Message answer;
  if (!answered || !control.get(&answer, 0))
    throw DoorError(answered ? "the child process ended" : "the child process is silent",
                    -FI_ENOTCONN);
  answer.rewind();
  if (answer.what < 0)
    throw DoorError(std::string("in the child: ") + answer.take<Failure>().text, answer.what);
  return answer;
}

int serve_calls(Control& control, void* object, const std::function<bool()>& polls) {
  constexpr int kForEver = 1'000'000'000;  // ms
  for (Message question;;) {
    if (polls()) pump_until([&] { return control.ready(); }, kForEver);
    if (!control.get(&question)) return 0;
    if (!control.put(carried_out(object, question))) return 0;
  }
}

}  // namespace aperture::doors
