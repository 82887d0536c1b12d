# SPDX-License-Identifier: Apache-2.0
# What the library can use: threads (always), liburing and libnuma (if they are there).
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(PkgConfig)

# ringcast_find(<option> <pkg-config name>): sets <option>_FOUND as the option (AUTO, ON or OFF) and the machine have
# it. The target to link is PkgConfig::<option>.
function(ringcast_find option package)
  set(${option} AUTO CACHE STRING "Use ${package}: AUTO (if it is there), ON (required) or OFF")
  set_property(CACHE ${option} PROPERTY STRINGS AUTO ON OFF)
  set(found OFF)
  if(${option} STREQUAL "AUTO" OR ${option})
    if(PkgConfig_FOUND)
      pkg_check_modules(${option} QUIET IMPORTED_TARGET GLOBAL ${package})
    endif()
    if(${option}_FOUND)
      set(found ON)
    elseif(NOT ${option} STREQUAL "AUTO")
      message(FATAL_ERROR "${option}=${${option}}, but pkg-config does not find ${package}. "
                          "Install it, or set ${option}=AUTO or OFF.")
    endif()
  endif()
  set(${option}_FOUND ${found} PARENT_SCOPE)
  set(${option}_VERSION "${${option}_VERSION}" PARENT_SCOPE)
endfunction()

ringcast_find(RINGCAST_LIBURING liburing)
ringcast_find(RINGCAST_NUMA numa)
