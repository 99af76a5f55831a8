// Whether memory is that of a file: what is written there and synced is there again later, which is
// what persistent memory means here. /proc/self/maps: proc_pid_maps(5). No state, any thread.
#pragma once

#include <cstddef>

namespace aperture {

// All of [at, at + len) is a shared mapping of files that have a name. Says something about now
// only. True for no bytes.
bool is_mapped_from_files(const void* at, size_t len);

}  // namespace aperture
