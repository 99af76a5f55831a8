// fi_getinfo: one question, one answer. man 3 fi_getinfo. Any thread; no state.
#pragma once

#include <rdma/fabric.h>

#include <cstdint>

#include "provider/names.hpp"

namespace aperture::provider {

struct InfoQuestion {
  uint32_t version = 0;  // API that the application was written for
  const char* node = nullptr;
  const char* service = nullptr;
  uint64_t flags = 0;
  const fi_info* hints = nullptr;
  const Name& name = own_name();  // under which it is asked
};

// 0 and *info (to be freed with fi_freeinfo), or -FI_ENODATA and a logged sentence, -FI_ENOMEM.
int get_info(const InfoQuestion& question, fi_info** info);

// For `aperture explain`, as libfabric ends: says so where a program that named no provider was
// answered and took none of it.
void explain_what_was_left() noexcept;
void note_opened() noexcept;  // a fabric has been

}  // namespace aperture::provider
