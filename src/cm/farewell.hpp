// Connections whose ids are gone, and which still have something to say: the last message is on its
// way, and closing at once could overtake it.
//
// The control thread's own. Each is held until the other side closes, for two seconds at most, and
// there are never more than 1024 of them.
#pragma once

#include <list>
#include <memory>

#include "cm/connection.hpp"

namespace aperture::cm {

class Farewell {
 public:
  static Farewell& instance(nic::ControlThread& control) noexcept;

  // Where there is no memory, it closes at once.
  void keep(std::shared_ptr<Connection> connection) noexcept;
  size_t count() const noexcept { return kept_.size(); }

 private:
  struct Kept {
    std::shared_ptr<Connection> connection;
    nic::ControlThread::TimerId timer = 0;
  };
  explicit Farewell(nic::ControlThread& control) noexcept : control_(control) {}
  void drop(std::list<Kept>::iterator at) noexcept;

  nic::ControlThread& control_;
  std::list<Kept> kept_;
};

}  // namespace aperture::cm
