// The port of a scalable endpoint, at which its contexts listen: see Contact::open_context_port().
//
// Its owner's control calls alone. In a forked child there is nothing of it to be closed.
#pragma once

#include <cassert>

#include "nic/contact.hpp"

namespace aperture::nic {

class ContextPort {
 public:
  // At exactly that address; port 0: any. By exception std::bad_alloc. Errors: those of
  // Contact::instance() and of open_context_port().
  static Result<std::unique_ptr<ContextPort>> open(const Address& at) {
    auto contact = Contact::instance();
    if (!contact) return contact.error();
    auto port = std::unique_ptr<ContextPort>(new ContextPort(**contact));
    auto id = (*contact)->open_context_port(at, port->address_);
    if (!id) return id.error();
    port->id_ = *id;
    assert(port->id_ != 0 && port->address_.port != 0);
    assert(at.port == 0 || at.port == port->address_.port);
    return port;
  }
  ~ContextPort() {
    if (id_ != 0) contact_.close_port(id_);
  }
  ContextPort(const ContextPort&) = delete;
  ContextPort& operator=(const ContextPort&) = delete;

  const Address& address() const noexcept { return address_; }

 private:
  explicit ContextPort(Contact& contact) noexcept : contact_(contact) {}

  Contact& contact_;
  PortId id_ = 0;  // 0: none
  Address address_;
};

}  // namespace aperture::nic
