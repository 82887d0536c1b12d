# SPDX-License-Identifier: Apache-2.0
# record, replay and dump, with a program at the other end of the ring.
add_executable(record_peer tools/record_peer.c)
ringcast_own(record_peer)
target_link_libraries(record_peer PRIVATE ringcast_static)
add_test(NAME tools_record
         COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/tools/test_record.py
                 $<TARGET_FILE:ringcast_tool> ${CMAKE_CURRENT_BINARY_DIR}/fake_cuda $<TARGET_FILE:record_peer>)
set_tests_properties(tools_record PROPERTIES TIMEOUT 900 LABELS "tools;alike")
