# SPDX-License-Identifier: Apache-2.0
# The library with its headers, find_package(ringcast), and pkg-config.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ringcast)

install(TARGETS ringcast ringcast_static EXPORT ringcast
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ringcast DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(EXPORT ringcast NAMESPACE ringcast:: FILE ringcast-targets.cmake DESTINATION ${package_dir})

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/ringcast-config.cmake.in ringcast-config.cmake
                              INSTALL_DESTINATION ${package_dir})
# A library serves all programs of its soname, the major version, that were made for no later version (version.h).
write_basic_package_version_file(ringcast-config-version.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ringcast-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/ringcast-config-version.cmake
        DESTINATION ${package_dir})

set(pc_requires "")
if(RINGCAST_LIBURING_FOUND)
  set(pc_requires liburing)
endif()
# Where dlopen is in a library of its own (before glibc 2.34).
set(pc_dl "${CMAKE_DL_LIBS}")
if(pc_dl)
  list(TRANSFORM pc_dl PREPEND "-l")
  list(JOIN pc_dl " " pc_dl)
endif()
foreach(kind LIBDIR INCLUDEDIR)
  set(pc_${kind} "\${prefix}/${CMAKE_INSTALL_${kind}}")
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${kind}}")
    set(pc_${kind} "${CMAKE_INSTALL_${kind}}")
  endif()
endforeach()
# The prefix is relative to the file itself, so the installed tree can be moved, and staged.
set(pc_prefix "${CMAKE_INSTALL_PREFIX}")
if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  file(RELATIVE_PATH up "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
  string(REGEX REPLACE "/$" "" up "${up}")
  set(pc_prefix "\${pcfiledir}/${up}")
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/ringcast.pc.in ringcast.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ringcast.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
