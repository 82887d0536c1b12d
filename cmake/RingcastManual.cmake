# SPDX-License-Identifier: Apache-2.0
# The man pages of the library: section 3 from the headers' comments, section 7 from docs/man. Left out where lowdown or
# Python is missing. Those of the command line: tools/CMakeLists.txt.
find_program(RINGCAST_LOWDOWN lowdown)
mark_as_advanced(RINGCAST_LOWDOWN)
find_package(Python3 COMPONENTS Interpreter QUIET)
if(NOT RINGCAST_LOWDOWN OR NOT Python3_Interpreter_FOUND)
  return()
endif()

set(manual ${CMAKE_CURRENT_BINARY_DIR}/manual)
file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/ringcast/*.h)
add_custom_command(OUTPUT ${manual}/made
                   DEPENDS ${headers} ${CMAKE_CURRENT_LIST_DIR}/reference.py
                           ${PROJECT_SOURCE_DIR}/docs/man/ringcast.7.md
                   COMMAND ${CMAKE_COMMAND} -E rm -rf ${manual}
                   COMMAND ${CMAKE_COMMAND} -E make_directory ${manual}/man7
                   COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_LIST_DIR}/reference.py man ${manual}/man3
                           ${RINGCAST_LOWDOWN}
                   COMMAND ${RINGCAST_LOWDOWN} -s -t man --parse-no-intraemph --out-no-smarty -m title=ringcast
                           -m section=7
                           -m "source=ringcast ${PROJECT_VERSION}"
                           -o ${manual}/man7/ringcast.7 ${PROJECT_SOURCE_DIR}/docs/man/ringcast.7.md
                   COMMAND ${CMAKE_COMMAND} -E touch ${manual}/made
                   VERBATIM)
add_custom_target(ringcast_manual ALL DEPENDS ${manual}/made)
install(DIRECTORY ${manual}/man3 ${manual}/man7 DESTINATION ${CMAKE_INSTALL_MANDIR})
