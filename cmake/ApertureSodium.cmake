# aperture_sodium: libsodium, inside what we link. The provider needs nothing at run time that not
# every system has, so the archive is taken; its objects are position-independent in the
# distributions' packages.
find_path(APERTURE_SODIUM_INCLUDE sodium.h)
find_library(APERTURE_SODIUM_LIBRARY NAMES libsodium.a)
if(NOT APERTURE_SODIUM_INCLUDE OR NOT APERTURE_SODIUM_LIBRARY)
  message(FATAL_ERROR "sodium.h or libsodium.a is missing: install libsodium-dev")
endif()
add_library(aperture_sodium INTERFACE)
target_include_directories(aperture_sodium SYSTEM INTERFACE ${APERTURE_SODIUM_INCLUDE})
target_link_libraries(aperture_sodium INTERFACE ${APERTURE_SODIUM_LIBRARY})
