// The work requests between wr_start and wr_complete: ibv_wr_post(3).
//
// They are gathered, and posted together or not at all. The memory that they take is kept from one
// batch to the next, so nothing is allocated once the largest has been seen. One thread at a time:
// `mutex` is held from wr_start to wr_complete or wr_abort.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "ib/work.hpp"

namespace aperture::verbs {

struct Ah;

struct Batch {
  struct Entry {
    ib::SendWr wr;
    ib::BindWr bind;
    const Ah* ah = nullptr;
    bool has_bind = false;
    bool is_inline = false;
    size_t first_sge = 0;   // in sges
    size_t first_byte = 0;  // in bytes
    size_t inline_bytes = 0;
  };

  void clear() noexcept {
    entries.clear();
    sges.clear();
    bytes.clear();
    error = 0;
  }

  std::mutex mutex;
  std::vector<Entry> entries;
  std::vector<ib::Sge> sges;
  std::vector<std::byte> bytes;  // inline data
  int error = 0;                 // the first that went wrong; wr_complete answers it
};

}  // namespace aperture::verbs
