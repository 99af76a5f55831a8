// What few lines have left to do: see line.hpp.
#include "qp/line.hpp"

namespace aperture::qp {

void Line::end(QpCore& core) noexcept {
  tell(core);
  if (core.port.send_counter != nullptr) core.port.send_counter->add(1);
}

void Line::tell(QpCore& core) noexcept {
  core.lane.tell_of_request();
}

}  // namespace aperture::qp
