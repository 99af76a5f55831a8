// What is the same in the ports of all endpoints: see endpoint.hpp.
#include "nic/endpoint.hpp"

#include <cassert>

#include "qp/port.hpp"

namespace aperture::nic {

void set_up(qp::Port& port, const EndpointOptions& options) noexcept {
  assert(options.engine != nullptr && options.wording != nullptr);
  port.domain = options.met_by_requests();
  assert(port.domain != 0);  // no key is in it
  port.endpoint = options.id;
  port.wording = options.wording;
  port.raw_keys = options.raw_keys;
  port.watches_regions = options.watches_regions;
  port.tx_cq = options.tx_cq;
  port.rx_cq = options.rx_cq;
  port.send_counter = options.counters.send;
  port.recv_counter = options.counters.recv;
  port.read_counter = options.counters.read;
  port.write_counter = options.counters.write;
  port.remote_read_counter = options.counters.remote_read;
  port.remote_write_counter = options.counters.remote_write;
  port.set_imm_flag(options.imm_flag);
  port.set_invalidated_flag(options.invalidated_flag);
  port.release_flag = options.release_flag;
  port.remote_write_flags = options.remote_write_flags;
  port.strict_rma_order = options.strict_rma_order;
  if (options.shared_transmit == nullptr) port.tx.size = options.tx_size;
}

}  // namespace aperture::nic
