# SPDX-License-Identifier: Apache-2.0
# record, replay and dump, with a program at the other end of the ring.
find_path(XXHASH_INCLUDE_DIR xxhash.h)
if(NOT XXHASH_INCLUDE_DIR OR CMAKE_CROSSCOMPILING)
  return() # as in tools/CMakeLists.txt
endif()
add_executable(record_peer tools/record_peer.c)
ringcast_own(record_peer)
target_link_libraries(record_peer PRIVATE ringcast_static)
add_test(NAME tools_record
         COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/tools/test_record.py
                 $<TARGET_FILE:ringcast_tool> ${CMAKE_CURRENT_BINARY_DIR}/fake_cuda $<TARGET_FILE:record_peer>)
set_tests_properties(tools_record PROPERTIES TIMEOUT 900 LABELS "tools;alike")

foreach(name dump recording)
  set(sources cli.c text.c dump_frame.c)
  if(name STREQUAL recording)
    set(sources cli.c recording_read.c recording_write.c)
  endif()
  list(TRANSFORM sources PREPEND ${PROJECT_SOURCE_DIR}/tools/)
  ringcast_add_test(test_${name} SOURCES unit/test_${name}.c ${sources} LABELS unit alike sanitized)
  add_dependencies(programs_sanitized test_${name})
  target_include_directories(test_${name} SYSTEM PRIVATE ${XXHASH_INCLUDE_DIR})
endforeach()
