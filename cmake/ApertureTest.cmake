# How tests are declared. Everything that ctest runs has a time limit: a hang is a failure.
#
#   aperture_test(NAME SOURCES file... [LIBS lib...] [LABELS label...] [TIMEOUT s] [ENV k=v...]
#                 [SERIAL])
#       a GoogleTest program test_NAME and one ctest entry NAME; the target labelled_LABEL builds
#       all programs that have the label
#   aperture_script_test(NAME COMMAND cmd... [NEEDS target...] [LABELS label...] [TIMEOUT s]
#                        [ENV k=v...] [SERIAL | BUSY])
#       a ctest entry for a script. NEEDS: what it runs, but for the targets that COMMAND and ENV
#       name by $<TARGET_FILE:...>
#   aperture_test_program(TARGET SOURCES file... [LIBS lib...])
#       a program with GoogleTest, compiled as tests are, and no ctest entry
#   aperture_labelled(LABEL target...)   labelled_LABEL builds these targets too
#   aperture_fuzz(NAME SOURCES file... [LIBS lib...] [CORPUS dir])
#       a libFuzzer program fuzz_NAME; only with APERTURE_FUZZ (then the other two do nothing)
#
# Labels with a meaning: `tsan` (./dev tsan runs these: threads over one mapping), `stock` (starts
# programs that are not ours, which cannot load a sanitized library by themselves), `mpi` (starts
# Open MPI), `kill` (kills processes; ./dev soak runs these with full counts), `live` (attackers
# beside honest processes; ./dev soak runs these for as long as it is told). SERIAL entries have the
# machine to themselves, BUSY ones poll on two cores. Exit code 77 of a script is a skip; it must
# print why.
#
# Each entry also has the label room_FOLDER, after its folder of tests/: `./dev test FOLDER` builds
# labelled_room_FOLDER and runs what has that label.

# What `./dev build` makes for users: the NEEDS of tests that start programs over either door.
set(APERTURE_PRODUCT aperture aperture-fi aperture-explain aperture-verbs)

set(APERTURE_PROVIDER_DIR ${CMAKE_BINARY_DIR}/lib/libfabric)

# What every test sees: the provider of this build tree, Open MPI willing to run as root, sanitizer
# reports that fail the test.
set(APERTURE_TEST_ENV
  FI_PROVIDER_PATH=${APERTURE_PROVIDER_DIR}
  APERTURE_BUILD_DIR=${CMAKE_BINARY_DIR}
  APERTURE_SOURCE_DIR=${CMAKE_SOURCE_DIR}
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
  ASAN_OPTIONS=abort_on_error=0:exitcode=99:detect_stack_use_after_return=1
  UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
  TSAN_OPTIONS=halt_on_error=1:exitcode=99:second_deadlock_stack=1:atexit_sleep_ms=100)

# Where tests/memory builds its stand-ins for the drivers of devices, and the environment of a test
# that is to find them.
set(APERTURE_STANDIN_DIR ${CMAKE_BINARY_DIR}/tests/memory/standin)
set(APERTURE_STANDIN_ENV LD_LIBRARY_PATH=${APERTURE_STANDIN_DIR})

# Sanitized and emulated programs are slower: their limits are multiplied.
set(APERTURE_TIMEOUT_FACTOR 1)
if(APERTURE_SANITIZE MATCHES thread OR CMAKE_CROSSCOMPILING)
  set(APERTURE_TIMEOUT_FACTOR 5)
elseif(APERTURE_SANITIZE)
  set(APERTURE_TIMEOUT_FACTOR 3)
endif()

# A program that is not ours bears a sanitized library if the sanitizer's runtime is loaded before
# it. Tests of the verbs door that start such programs take the labels APERTURE_GUEST_LABELS and the
# environment APERTURE_GUEST_ENV: with AddressSanitizer they run, without its search for leaks
# (python3 has its own). APERTURE_RUNTIME_FIRST is what stands before ours in an LD_PRELOAD.
set(APERTURE_GUEST_LABELS stock)
set(APERTURE_GUEST_ENV "")
set(APERTURE_RUNTIME_FIRST "")
if(APERTURE_RUNTIME AND NOT APERTURE_FUZZ)
  set(APERTURE_RUNTIME_FIRST "${APERTURE_RUNTIME}:")
  if(APERTURE_SANITIZE MATCHES address)
    set(APERTURE_GUEST_LABELS "")
    set(APERTURE_GUEST_ENV LD_PRELOAD=${APERTURE_RUNTIME}
      ASAN_OPTIONS=abort_on_error=0:exitcode=99:detect_stack_use_after_return=1:detect_leaks=0)
  endif()
endif()

# Sets room_label in the caller: the label that the tests of this folder share.
macro(aperture_room_label)
  get_filename_component(room_label ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  string(PREPEND room_label room_)
endmacro()

function(aperture_test_properties name)
  aperture_room_label()
  cmake_parse_arguments(P "SERIAL;BUSY" "TIMEOUT" "LABELS;ENV" ${ARGN})
  if(NOT P_TIMEOUT)
    set(P_TIMEOUT 60)
  endif()
  math(EXPR limit "${P_TIMEOUT} * ${APERTURE_TIMEOUT_FACTOR}")
  set_tests_properties(${name} PROPERTIES
    TIMEOUT ${limit}
    SKIP_RETURN_CODE 77
    ENVIRONMENT "${APERTURE_TEST_ENV};${P_ENV}"
    LABELS "${P_LABELS};${room_label}")
  # the long ones first: the last of them would run alone
  set_tests_properties(${name} PROPERTIES COST ${P_TIMEOUT})
  if(P_SERIAL)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
  elseif(P_BUSY)
    set_tests_properties(${name} PROPERTIES PROCESSORS 2)
  endif()
endfunction()

function(aperture_labelled label)
  if(NOT TARGET labelled_${label})
    add_custom_target(labelled_${label})
  endif()
  if(ARGN)
    add_dependencies(labelled_${label} ${ARGN})
  endif()
endfunction()

# Where the tests are, their precompiled headers: most of a small test's compilation was GoogleTest.
# A header precompiled with other options cannot be reused, and these are the programs' own.
macro(aperture_test_options target)
  # what is tested is optimised; the tests themselves only have to compile soon
  target_compile_options(${target} PRIVATE -O0 -g1)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_link_libraries(${target} PRIVATE GTest::gtest)
endmacro()

macro(aperture_test_headers)
  aperture_headers(test_headers <gtest/gtest.h> ${APERTURE_STD_HEADERS} <fstream> <random> <set>
    <thread>)
  aperture_test_options(test_headers)
endmacro()

function(aperture_test_program target)
  cmake_parse_arguments(P "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${target} ${P_SOURCES})
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(${target} PRIVATE ${P_LIBS} Threads::Threads ${CMAKE_DL_LIBS})
  if(TARGET test_emulated)
    target_link_libraries(${target} PRIVATE test_emulated)
  endif()
  aperture_test_options(${target})
  aperture_reuse_headers(${target} test_headers)
endfunction()

function(aperture_test name)
  cmake_parse_arguments(T "SERIAL" "TIMEOUT" "SOURCES;LIBS;LABELS;ENV" ${ARGN})
  if(APERTURE_FUZZ)
    return()
  endif()
  aperture_test_program(test_${name} SOURCES ${T_SOURCES} LIBS ${T_LIBS} GTest::gtest_main)
  aperture_room_label()
  foreach(label ${T_LABELS} ${room_label})
    aperture_labelled(${label} test_${name})
  endforeach()
  add_test(NAME ${name} COMMAND test_${name})
  set(serial "")
  if(T_SERIAL)
    set(serial SERIAL)
  endif()
  aperture_test_properties(${name} ${serial} TIMEOUT ${T_TIMEOUT} LABELS ${T_LABELS} ENV ${T_ENV})
endfunction()

function(aperture_script_test name)
  cmake_parse_arguments(T "SERIAL;BUSY" "TIMEOUT" "COMMAND;NEEDS;LABELS;ENV" ${ARGN})
  if(APERTURE_FUZZ)
    return()
  endif()
  string(REGEX MATCHALL "\\$<TARGET_FILE(_DIR)?:[^>]+" named "${T_COMMAND};${T_ENV}")
  list(TRANSFORM named REPLACE "^.*:" "")
  aperture_room_label()
  aperture_labelled(${room_label} ${named} ${T_NEEDS})
  add_test(NAME ${name} COMMAND ${T_COMMAND})
  set(how "")
  if(T_SERIAL)
    set(how SERIAL)
  elseif(T_BUSY)
    set(how BUSY)
  endif()
  aperture_test_properties(${name} ${how} TIMEOUT ${T_TIMEOUT} LABELS ${T_LABELS} ENV ${T_ENV})
endfunction()

function(aperture_fuzz name)
  cmake_parse_arguments(T "" "CORPUS" "SOURCES;LIBS" ${ARGN})
  if(NOT APERTURE_FUZZ)
    return()
  endif()
  add_executable(fuzz_${name} ${T_SOURCES})
  target_include_directories(fuzz_${name} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(fuzz_${name} PRIVATE ${T_LIBS} Threads::Threads)
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  if(NOT TARGET fuzzers)
    add_custom_target(fuzzers)
  endif()
  add_dependencies(fuzzers fuzz_${name})
  set(corpus ${CMAKE_CURRENT_SOURCE_DIR}/corpus/${name})
  if(T_CORPUS)
    get_filename_component(corpus ${T_CORPUS} ABSOLUTE)
  endif()
  # ./dev fuzz reads this list: program, then corpus folder
  file(APPEND ${CMAKE_BINARY_DIR}/fuzz-targets.txt "fuzz_${name}\t${corpus}\n")
endfunction()
