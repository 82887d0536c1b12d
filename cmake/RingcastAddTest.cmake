# SPDX-License-Identifier: Apache-2.0
find_package(PkgConfig REQUIRED)
pkg_check_modules(CHECK IMPORTED_TARGET GLOBAL check)
if(NOT CHECK_FOUND)
  message(FATAL_ERROR "The tests need the check library (Debian: check). Install it, or set RINGCAST_TESTS=OFF.")
endif()
find_package(Python3 REQUIRED COMPONENTS Interpreter)

# ringcast_add_test(<name> SOURCES <file>... [LABELS <label>...] [SERIAL] [NOT_BY_QEMU <reason>])
# One executable, linked with check and the static library; it may include internal headers. It runs in the root of
# the sources, by RINGCAST_TEST_LAUNCHER if that is set. SERIAL: nothing else runs beside it. NOT_BY_QEMU: qemu, which
# runs it for another CPU, has nothing of what it tests.
set(RINGCAST_TEST_LAUNCHER "" CACHE STRING "A program to run each C test by")
function(ringcast_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SERIAL" "NOT_BY_QEMU" "SOURCES;LABELS")
  add_executable(${name} ${arg_SOURCES})
  ringcast_own(${name})
  target_link_libraries(${name} PRIVATE ringcast_static PkgConfig::CHECK Threads::Threads)
  if(CMAKE_CROSSCOMPILING)
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/support/qemu.c)
    target_link_options(${name} PRIVATE -Wl,--wrap=open)
  endif()
  set(command ${name})
  if(CMAKE_CROSSCOMPILING AND arg_NOT_BY_QEMU)
    set(command ${CMAKE_COMMAND} -E echo "SKIPPED ${name}: ${arg_NOT_BY_QEMU}")
  elseif(RINGCAST_TEST_LAUNCHER)
    set(command ${RINGCAST_TEST_LAUNCHER} $<TARGET_FILE:${name}>)
  endif()
  add_test(NAME ${name} COMMAND ${command} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT 900 LABELS "${arg_LABELS}" RUN_SERIAL "${arg_SERIAL}")
endfunction()

# ringcast_add_gpu_test(<name> ...): the same, with the tests' own libcuda.so.1.
function(ringcast_add_gpu_test name)
  ringcast_add_test(${name} ${ARGN} NOT_BY_QEMU "a static program opens no driver")
  add_dependencies(${name} fake_cuda_new fake_cuda_old)
  set_property(TEST ${name} APPEND PROPERTY
               ENVIRONMENT_MODIFICATION LD_LIBRARY_PATH=path_list_prepend:${RINGCAST_FAKE_CUDA})
endfunction()
