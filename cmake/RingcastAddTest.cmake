# SPDX-License-Identifier: Apache-2.0
find_package(PkgConfig REQUIRED)
pkg_check_modules(CHECK IMPORTED_TARGET GLOBAL check)
if(NOT CHECK_FOUND)
  message(FATAL_ERROR "The tests need the check library (Debian: check). Install it, or set RINGCAST_TESTS=OFF.")
endif()
find_package(Python3 REQUIRED COMPONENTS Interpreter)

# ringcast_add_test(<name> SOURCES <file>... [LABELS <label>...] [SERIAL])
# One executable, linked with check and the static library; it may include internal headers. It runs in the root of
# the sources. SERIAL: nothing else runs beside it.
function(ringcast_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SERIAL" "" "SOURCES;LABELS")
  add_executable(${name} ${arg_SOURCES})
  ringcast_own(${name})
  target_link_libraries(${name} PRIVATE ringcast_static PkgConfig::CHECK Threads::Threads)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT 900 LABELS "${arg_LABELS}" RUN_SERIAL "${arg_SERIAL}")
endfunction()
