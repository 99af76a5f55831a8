// Finding the provider: see places.hpp.
#include "tool/places.hpp"

#include <array>
#include <cassert>
#include <filesystem>
#include <system_error>

namespace aperture::tool {

namespace fs = std::filesystem;

namespace {

std::array<fs::path, 2> candidates(const std::string& command_folder) {
  assert(!command_folder.empty());
  const fs::path own(command_folder);
  return {(own / APERTURE_INSTALLED_PROVIDER_DIR).lexically_normal(),
          (own / "../lib/libfabric").lexically_normal()};
}

}  // namespace

const char* version() noexcept {
  return APERTURE_VERSION;
}

std::string own_folder() {
  std::error_code ec;
  const fs::path own = fs::read_symlink("/proc/self/exe", ec);
  return ec ? std::string() : own.parent_path().string();
}

std::string find_provider_folder(const std::string& command_folder) {
  for (const fs::path& folder : candidates(command_folder)) {
    std::error_code ec;
    if (fs::is_regular_file(folder / kProviderFile, ec)) return folder.string();
  }
  return {};
}

std::string searched_provider_folders(const std::string& command_folder) {
  const auto folders = candidates(command_folder);
  return folders[0].string() + " nor in " + folders[1].string();
}

const char* libfabric_provider_folder() noexcept {
  return APERTURE_LIBFABRIC_PROVIDER_DIR;
}

}  // namespace aperture::tool
