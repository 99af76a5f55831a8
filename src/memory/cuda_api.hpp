// The calls of CUDA's driver API that Aperture makes, as libcuda.so.1 exports them: NVIDIA's "CUDA
// Driver API" reference, sections "Primary Context Management", "Context Management", "Memory
// Management", "Unified Addressing" and "Stream Management". Only what is needed is declared. The
// names are NVIDIA's, with the version that the library's ABI has for them.
#pragma once

#include <cstddef>

#include "memory/library.hpp"

namespace aperture::memory::cu {

using Device = int;                  // CUdevice, which is also the device's ordinal
using Context = void*;               // CUcontext
using Stream = void*;                // CUstream
using Pointer = unsigned long long;  // CUdeviceptr

// CUresult
inline constexpr int kSuccess = 0;
inline constexpr int kNotInitialized = 3;
inline constexpr int kNoDevice = 100;
inline constexpr int kNotReady = 600;

// CUpointer_attribute
inline constexpr int kContext = 1;        // Context
inline constexpr int kMemoryType = 2;     // unsigned: kHost, kDevice
inline constexpr int kSyncMemops = 6;     // unsigned
inline constexpr int kBufferId = 7;       // unsigned long long, never used again in this process
inline constexpr int kIsManaged = 8;      // a truth value
inline constexpr int kDeviceOrdinal = 9;  // int

// CUmemorytype
inline constexpr unsigned kHost = 1;
inline constexpr unsigned kDevice = 2;

inline constexpr unsigned kStreamNonBlocking = 1;  // CU_STREAM_NON_BLOCKING
inline constexpr unsigned kHostPortable = 1;       // CU_MEMHOSTALLOC_PORTABLE

// CUipcMemHandle, and CUuuid; both are passed and filled as plain bytes.
struct IpcHandle {
  unsigned char bytes[64];
};
struct Uuid {
  unsigned char bytes[16];
};
inline constexpr unsigned kLazyPeerAccess = 1;  // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS

// CUDA_MEMCPY2D: `height` rows of `width` bytes; what is not named is not used.
struct Rows {
  size_t from_x = 0, from_y = 0;
  unsigned from_type = kHost;
  const void* from_host = nullptr;
  Pointer from_device = 0;
  void* from_array = nullptr;
  size_t from_pitch = 0;  // bytes between the beginnings of rows
  size_t to_x = 0, to_y = 0;
  unsigned to_type = kDevice;
  void* to_host = nullptr;
  Pointer to_device = 0;
  void* to_array = nullptr;
  size_t to_pitch = 0;
  size_t width = 0, height = 0;
};

struct Calls {
  explicit Calls(Library library) noexcept : find(library) {}

  Finder find;  // before what it finds
  int (*const cuInit)(unsigned flags) = find("cuInit");
  int (*const cuDeviceGetCount)(int* count) = find("cuDeviceGetCount");
  int (*const cuDevicePrimaryCtxRetain)(Context* context,
                                        Device device) = find("cuDevicePrimaryCtxRetain");
  int (*const cuDevicePrimaryCtxRelease)(Device device) = find("cuDevicePrimaryCtxRelease_v2");
  int (*const cuDevicePrimaryCtxGetState)(Device device, unsigned* flags,
                                          int* active) = find("cuDevicePrimaryCtxGetState");
  int (*const cuCtxPushCurrent)(Context context) = find("cuCtxPushCurrent_v2");
  int (*const cuCtxPopCurrent)(Context* context) = find("cuCtxPopCurrent_v2");
  int (*const cuPointerGetAttributes)(unsigned count, int* attributes, void** data,
                                      Pointer at) = find("cuPointerGetAttributes");
  int (*const cuPointerSetAttribute)(const void* value, int attribute,
                                     Pointer at) = find("cuPointerSetAttribute");
  int (*const cuMemGetAddressRange)(Pointer* base, size_t* size,
                                    Pointer at) = find("cuMemGetAddressRange_v2");
  int (*const cuMemHostAlloc)(void** at, size_t size, unsigned flags) = find("cuMemHostAlloc");
  int (*const cuMemFreeHost)(void* at) = find("cuMemFreeHost");
  int (*const cuMemcpyHtoDAsync)(Pointer to, const void* from, size_t n,
                                 Stream stream) = find("cuMemcpyHtoDAsync_v2");
  int (*const cuMemcpy2DAsync)(const Rows* rows, Stream stream) = find("cuMemcpy2DAsync_v2");
  int (*const cuMemcpyDtoHAsync)(void* to, Pointer from, size_t n,
                                 Stream stream) = find("cuMemcpyDtoHAsync_v2");
  int (*const cuStreamCreate)(Stream* stream, unsigned flags) = find("cuStreamCreate");
  int (*const cuStreamSynchronize)(Stream stream) = find("cuStreamSynchronize");
  int (*const cuStreamDestroy)(Stream stream) = find("cuStreamDestroy_v2");
  int (*const cuStreamQuery)(Stream stream) = find("cuStreamQuery");
  // Between processes; all four or none.
  int (*const cuDeviceGetUuid)(Uuid* uuid, Device device) = find.perhaps("cuDeviceGetUuid_v2");
  int (*const cuIpcGetMemHandle)(IpcHandle* handle, Pointer at) = find.perhaps("cuIpcGetMemHandle");
  int (*const cuIpcOpenMemHandle)(Pointer* at, IpcHandle handle,
                                  unsigned flags) = find.perhaps("cuIpcOpenMemHandle_v2");
  int (*const cuIpcCloseMemHandle)(Pointer at) = find.perhaps("cuIpcCloseMemHandle");
  bool has_shares() const noexcept {
    return cuDeviceGetUuid != nullptr && cuIpcGetMemHandle != nullptr &&
           cuIpcOpenMemHandle != nullptr && cuIpcCloseMemHandle != nullptr;
  }
};

}  // namespace aperture::memory::cu
