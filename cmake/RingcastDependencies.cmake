# SPDX-License-Identifier: Apache-2.0
# What the library can use: threads (always), liburing (if it is there).
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(PkgConfig)

# RINGCAST_LIBURING_FOUND: as the option and the machine have it. The target to link is PkgConfig::RINGCAST_LIBURING.
set(RINGCAST_LIBURING AUTO CACHE STRING "Use liburing: AUTO (if it is there), ON (required) or OFF")
set_property(CACHE RINGCAST_LIBURING PROPERTY STRINGS AUTO ON OFF)
set(found OFF)
if(RINGCAST_LIBURING STREQUAL "AUTO" OR RINGCAST_LIBURING)
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
