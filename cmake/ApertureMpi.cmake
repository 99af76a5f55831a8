# MPI programs of ours in C, where the distribution has Open MPI's compiler wrapper and its header
# (Debian: openmpi-bin, libopenmpi-dev).
#
#   aperture_mpi_program(NAME)   the program NAME from NAME.c of this folder; does nothing where
#                                APERTURE_MPI is false
#   aperture_openshmem_program(NAME)   the same, by the compiler wrapper of Open MPI's OpenSHMEM
#
# A stock program cannot load a sanitized provider without the sanitizer's own library, so there are
# none in sanitized builds.
set(APERTURE_MPI FALSE)
find_program(APERTURE_MPICC NAMES mpicc.openmpi)
if(APERTURE_MPICC AND NOT APERTURE_SANITIZE AND NOT APERTURE_FUZZ)
  execute_process(COMMAND ${APERTURE_MPICC} -fsyntax-only -x c -include mpi.h /dev/null
    RESULT_VARIABLE no_mpi_header OUTPUT_QUIET ERROR_QUIET)
  if(no_mpi_header)
    message(STATUS "MPI programs are not built: mpi.h is missing (Debian: libopenmpi-dev)")
  else()
    set(APERTURE_MPI TRUE)
  endif()
endif()

find_program(APERTURE_OSHCC NAMES oshcc)

function(aperture_wrapped_program name compiler)
  add_custom_command(OUTPUT ${name} DEPENDS ${name}.c
    COMMAND ${compiler} -O2 -Wall -Wextra -o ${name} ${CMAKE_CURRENT_SOURCE_DIR}/${name}.c -pthread)
  add_custom_target(program_${name} ALL DEPENDS ${name})
endfunction()

function(aperture_mpi_program name)
  if(APERTURE_MPI)
    aperture_wrapped_program(${name} ${APERTURE_MPICC})
  endif()
endfunction()

function(aperture_openshmem_program name)
  if(APERTURE_MPI AND APERTURE_OSHCC)
    aperture_wrapped_program(${name} ${APERTURE_OSHCC})
  endif()
endfunction()
