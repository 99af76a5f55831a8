# aperture_room(NAME [DEPENDS room...] [ALONE file...]): the static library ap_NAME from src/NAME
#   (and its folders). Where APERTURE_JOINED is set, files of a room are compiled together: it takes
#   a quarter of the time (a file's headers cost more than the file); so what is in their unnamed
#   namespaces has names of its own in the room. Files that cannot share a compilation are ALONE;
#   `ALONE all` is all of them.
# aperture_objects(NAME SOURCES file... LIBS lib...): the object library ap_NAME; who links it has
#   the objects and LIBS. The doors are made of these, for what a door is made of is also tested.
#   They are compiled as a room's files are.
# aperture_join(TARGET [ALONE file...]): the same for another target.
# aperture_headers(NAME header...): precompiled headers, for targets to reuse that are compiled with
#   the same options (GCC). A file still includes what it needs: the presets tsan and fuzz do
#   without precompiled headers.
set(APERTURE_STD_HEADERS <algorithm> <array> <atomic> <functional> <memory> <mutex> <optional>
  <span> <string> <vector>)

function(aperture_headers name)
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/${name}.cpp CONTENT "// a target needs a source\n")
  add_library(${name} OBJECT ${CMAKE_BINARY_DIR}/${name}.cpp)
  target_precompile_headers(${name} PRIVATE ${ARGN})
  set_target_properties(${name} PROPERTIES
    CXX_COMPILER_LAUNCHER ${CMAKE_SOURCE_DIR}/cmake/precompile.sh)
endfunction()

# aperture_reuse_headers(TARGET NAME): TARGET is compiled with NAME's precompiled headers.
function(aperture_reuse_headers target name)
  target_precompile_headers(${target} REUSE_FROM ${name})
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # ccache sees the header, and one that cannot serve is an error
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess$<SEMICOLON>-Werror=invalid-pch>)
  endif()
endfunction()

aperture_headers(room_headers ${APERTURE_STD_HEADERS})

function(aperture_join target)
  cmake_parse_arguments(J "" "" "ALONE" ${ARGN})
  if(NOT APERTURE_JOINED)
    return()
  endif()
  if(J_ALONE)
    set_source_files_properties(${J_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
endfunction()

function(aperture_room name)
  cmake_parse_arguments(ROOM "" "" "DEPENDS;ALONE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cpp)
  file(GLOB_RECURSE c_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.c)
  set_source_files_properties(${c_sources} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  if(sources)
    add_library(ap_${name} STATIC ${sources} ${c_sources})
    aperture_reuse_headers(ap_${name} room_headers)
    if(NOT ROOM_ALONE STREQUAL all)
      list(TRANSFORM ROOM_ALONE PREPEND ${CMAKE_SOURCE_DIR}/src/${name}/)
      aperture_join(ap_${name} ALONE ${ROOM_ALONE} ${c_sources})
    endif()
    set(scope PUBLIC)
  else()
    add_library(ap_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(ap_${name} ${scope} ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(ap_${name} ${scope} Threads::Threads)
  foreach(dep ${ROOM_DEPENDS})
    target_link_libraries(ap_${name} ${scope} ap_${dep})
  endforeach()
endfunction()

function(aperture_objects name)
  cmake_parse_arguments(O "" "" "SOURCES;LIBS" ${ARGN})
  add_library(ap_${name} OBJECT ${O_SOURCES})
  aperture_join(ap_${name})
  aperture_reuse_headers(ap_${name} room_headers)
  target_include_directories(ap_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(ap_${name} PUBLIC ${O_LIBS})
endfunction()
