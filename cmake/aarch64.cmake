# Toolchain of the preset aarch64: Debian's cross compiler, and qemu-user for the tests. Libraries
# come from Debian's packages for that architecture, unpacked under build/packages-arm64 by
# `./dev aarch64`; APERTURE_CROSS_ROOT names another such folder.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)

set(APERTURE_CROSS_ROOT ${CMAKE_CURRENT_LIST_DIR}/../build/packages-arm64 CACHE PATH
  "Where the libraries of the target lie, below usr/")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES APERTURE_CROSS_ROOT)
get_filename_component(root ${APERTURE_CROSS_ROOT} ABSOLUTE)
set(CMAKE_FIND_ROOT_PATH ${root} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
foreach(kind LIBRARY INCLUDE PACKAGE)
  set(CMAKE_FIND_ROOT_PATH_MODE_${kind} ONLY)
endforeach()
set(CMAKE_CXX_STANDARD_INCLUDE_DIRECTORIES ${root}/usr/include
  ${root}/usr/include/aarch64-linux-gnu)
