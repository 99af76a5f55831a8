// Where the pieces of Aperture lie, seen from the running `aperture` command.
//
// Both trees can be moved as a whole: everything is found relative to the command's own file. No
// state, any thread.
#pragma once

#include <string>

namespace aperture::tool {

inline constexpr const char* kProviderFile = "libaperture-fi.so";
inline constexpr const char* kExplainFile = "libaperture-explain.so";  // beside it

// The version of this build: "0.1.0".
const char* version() noexcept;

// Folder of the running command's own file, without a trailing slash. Empty if /proc is missing:
// then nothing may be sought, as it would be found relative to the current folder, which may have
// anybody's libraries.
std::string own_folder();

// What is to be said then.
inline constexpr const char* kNoOwnFolder =
    "/proc is not mounted here, so the command cannot find its own libraries; mount it (mount -t "
    "proc proc /proc) and start it again";

// The folder that holds the provider: beside an installed command (../lib/<arch>/aperture), else in
// a build tree (../lib/libfabric). Empty when neither has it.
std::string find_provider_folder(const std::string& command_folder);

// "A nor in B": the folders that find_provider_folder looks into, for saying that it is in neither.
std::string searched_provider_folders(const std::string& command_folder);

// The folder that libfabric itself scans when FI_PROVIDER_PATH is unset.
const char* libfabric_provider_folder() noexcept;

}  // namespace aperture::tool
