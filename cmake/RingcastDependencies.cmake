# SPDX-License-Identifier: Apache-2.0
# What the library can use: threads (always), liburing (if it is there). RINGCAST_HAVE_LIBURING: liburing is used.
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(PkgConfig)

# RINGCAST_LIBURING_FOUND: as the option and the machine have it. The target to link is PkgConfig::RINGCAST_LIBURING.
set(RINGCAST_LIBURING AUTO CACHE STRING "Use liburing: AUTO (if it is there), ON (required) or OFF")
set_property(CACHE RINGCAST_LIBURING PROPERTY STRINGS AUTO ON OFF)
set(RINGCAST_LIBURING_ARCHIVE "" CACHE FILEPATH "A liburing.a that becomes part of the library (cmake/wheels.sh)")
set(found OFF)
if(RINGCAST_LIBURING_ARCHIVE)
  set(folder ${PROJECT_BINARY_DIR}/liburing)
  file(REMOVE_RECURSE ${folder})
  file(MAKE_DIRECTORY ${folder})
  execute_process(COMMAND ${CMAKE_AR} xo ${RINGCAST_LIBURING_ARCHIVE} WORKING_DIRECTORY ${folder}
                  COMMAND_ERROR_IS_FATAL ANY)
  file(GLOB names RELATIVE ${folder} ${folder}/*)
  foreach(name ${names}) # .ol or .os, which zig does not take for objects
    file(RENAME ${folder}/${name} ${folder}/${name}.o)
    list(APPEND RINGCAST_LIBURING_OBJECTS ${folder}/${name}.o)
  endforeach()
  set_source_files_properties(${RINGCAST_LIBURING_OBJECTS} PROPERTIES EXTERNAL_OBJECT ON)
elseif(RINGCAST_LIBURING STREQUAL "AUTO" OR RINGCAST_LIBURING)
  if(PkgConfig_FOUND)
    pkg_check_modules(RINGCAST_LIBURING QUIET IMPORTED_TARGET GLOBAL liburing)
  endif()
  if(RINGCAST_LIBURING_FOUND)
    set(found ON)
  elseif(NOT RINGCAST_LIBURING STREQUAL "AUTO")
    message(FATAL_ERROR "RINGCAST_LIBURING=${RINGCAST_LIBURING}, but pkg-config does not find liburing. "
                        "Install it, or set RINGCAST_LIBURING=AUTO or OFF.")
  endif()
endif()
set(RINGCAST_LIBURING_FOUND ${found})
set(RINGCAST_HAVE_LIBURING OFF)
if(RINGCAST_LIBURING_FOUND OR RINGCAST_LIBURING_ARCHIVE)
  set(RINGCAST_HAVE_LIBURING ON)
endif()
