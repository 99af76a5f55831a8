# Compiler settings that every target shares.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()

option(APERTURE_TESTS "Build the tests" ON)
option(APERTURE_DOORS "Build the doors and what needs them, not the rooms alone" ON)
option(APERTURE_FUZZ "Build the libFuzzer targets (clang only)" OFF)
option(APERTURE_TIDY "Give the compiler no options that clang-tidy cannot read" OFF)
option(APERTURE_JOINED "Compile files of a room together (cmake/ApertureRoom.cmake)" OFF)
set(APERTURE_SANITIZE "" CACHE STRING "Sanitizers for every target: address,undefined or thread")

# ccache takes a compilation with a precompiled header only if it may be this sloppy; no file has
# the time of day in it. The compiler says what a file includes (depend mode): nothing is
# preprocessed first, which took a third of the work of a full build.
find_program(APERTURE_CCACHE ccache)
if(APERTURE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER env CCACHE_DEPEND=1 ${APERTURE_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_DEPEND=1 CCACHE_PCH_EXTSUM=1
    CCACHE_SLOPPINESS=pch_defines,time_macros ${APERTURE_CCACHE})
endif()

# RelWithDebInfo at -O2 with NDEBUG unset: our own invariants stay asserted in what we ship.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g")
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g")
add_compile_options(-Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Werror=return-type
  -fno-plt -fstack-protector
  # records are filled member by member and read soon after: in one larger load, which this would
  # make of it, they cannot be had before the stores have left the processor
  -fno-tree-slp-vectorize
  -ffp-contract=off)  # atomics on floating point round the same on every machine
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND NOT APERTURE_TIDY
    AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # GCC clears and copies records of more than 128 bytes or so with `rep stos` and `rep movs`. Those
  # wait until what was stored before has left the processor, and a request just published goes into
  # a line that the other core has (docs/adr/0016)
  add_compile_options(-mmemset-strategy=unrolled_loop:1024:noalign,libcall:-1:noalign
    -mmemcpy-strategy=unrolled_loop:1024:noalign,libcall:-1:noalign)
endif()
if(APERTURE_SANITIZE)
  # a report names lines, and nothing that -g would add to them
  add_compile_options(-fsanitize=${APERTURE_SANITIZE} -fno-omit-frame-pointer -O1 -g1)
  add_link_options(-fsanitize=${APERTURE_SANITIZE})
  if(APERTURE_SANITIZE MATCHES undefined)
    # enum: what a C application puts into libfabric's enums may be any int, and has to be answered
    add_compile_options(-fno-sanitize-recover=undefined -fno-sanitize=enum)
  endif()
endif()
# The sanitizers' runtime library, for programs that are to have it before ours; empty: not found.
set(APERTURE_RUNTIME "")
if(APERTURE_SANITIZE AND CMAKE_CXX_COMPILER_ID MATCHES Clang)
  if(APERTURE_SANITIZE MATCHES address)
    add_compile_definitions(__SANITIZE_ADDRESS__)  # GCC's word for it
    if(NOT APERTURE_FUZZ)  # enums of a driver are ints to who looks its calls up
      add_compile_options(-fno-sanitize=function)
    endif()
    set(APERTURE_RUNTIME libclang_rt.asan-${CMAKE_SYSTEM_PROCESSOR}.so)
  endif()
elseif(APERTURE_SANITIZE MATCHES address)
  set(APERTURE_RUNTIME libasan.so)
elseif(APERTURE_SANITIZE)
  set(APERTURE_RUNTIME libtsan.so)
endif()
if(APERTURE_RUNTIME)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=${APERTURE_RUNTIME}
    OUTPUT_VARIABLE APERTURE_RUNTIME OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(IS_ABSOLUTE "${APERTURE_RUNTIME}" AND EXISTS "${APERTURE_RUNTIME}")
    file(REAL_PATH ${APERTURE_RUNTIME} APERTURE_RUNTIME)
  else()
    set(APERTURE_RUNTIME "")
  endif()
endif()
if(APERTURE_RUNTIME AND NOT APERTURE_FUZZ AND CMAKE_CXX_COMPILER_ID MATCHES Clang)
  # one runtime for a program and the libraries of ours that it loads, as with GCC
  get_filename_component(runtime_folder ${APERTURE_RUNTIME} DIRECTORY)
  add_link_options(-shared-libsan -Wl,-rpath,${runtime_folder})
endif()
if(APERTURE_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
if(APERTURE_SANITIZE OR APERTURE_FUZZ)
  add_compile_definitions(APERTURE_INVARIANTS)  # src/base/invariant.hpp
endif()
find_package(Threads REQUIRED)
