# SPDX-License-Identifier: Apache-2.0
# RINGCAST_VERSION, and RINGCAST_SOVERSION, the major version, from version.h, their one home. What a soname promises is
# written there.
set(version_h ${CMAKE_CURRENT_LIST_DIR}/../include/ringcast/version.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${version_h})
file(READ ${version_h} text)
if(NOT text MATCHES "#define RINGCAST_VERSION +\"(([0-9]+)\\.[0-9]+\\.[0-9]+)\"")
  message(FATAL_ERROR "no RINGCAST_VERSION \"x.y.z\" in ${version_h}")
endif()
set(RINGCAST_VERSION ${CMAKE_MATCH_1})
set(RINGCAST_SOVERSION ${CMAKE_MATCH_2})
