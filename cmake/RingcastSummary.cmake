# SPDX-License-Identifier: Apache-2.0
# What was found, what is missing, and what follows.
function(ringcast_say name found yes no)
  if(found)
    set(text "${yes}")
  else()
    set(text "${no}")
  endif()
  message(STATUS "  ${name} ${text}")
endfunction()

message(STATUS "ringcast ${PROJECT_VERSION}, ${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}, ${CMAKE_BUILD_TYPE}")
if(RINGCAST_LIBURING STREQUAL "AUTO" OR RINGCAST_LIBURING)
  set(liburing "not found (Debian: liburing-dev)")
else()
  set(liburing "switched off")
endif()
ringcast_say("liburing:  " "${RINGCAST_HAVE_LIBURING}" "found, ${RINGCAST_LIBURING_VERSION}${RINGCAST_LIBURING_ARCHIVE}"
             "${liburing}; a helper thread serves ringcast_reader_fd()")
ringcast_say("tests:     " "${RINGCAST_TESTS}" "yes; run ctest" "no (RINGCAST_TESTS=OFF)")
if(RINGCAST_TESTS)
  ringcast_say("cuda.h:    " "${RINGCAST_CUDA_INCLUDE}" "${RINGCAST_CUDA_INCLUDE}"
               "not found (CUDA's toolkit); gpu/driver.h is not held against it")
endif()
if(RINGCAST_BENCH)
  ringcast_say("benchmarks:" "${benchmark_FOUND}" "yes, Google Benchmark ${benchmark_VERSION}"
               "no: Google Benchmark not found (Debian: libbenchmark-dev)")
else()
  ringcast_say("benchmarks:" OFF "" "no (RINGCAST_BENCH=OFF)")
endif()
ringcast_say("Python:    " "${RINGCAST_PYTHON}" "yes, ${Python_VERSION}" "no (RINGCAST_PYTHON=OFF; pip builds it)")
if(RINGCAST_INSTALL)
  set(manual OFF)
  if(TARGET ringcast_manual)
    set(manual ON)
  endif()
  ringcast_say("manual:    " ${manual} "yes, sections 3 and 7"
               "no: needs lowdown and Python 3 (Debian: lowdown python3)")
endif()
