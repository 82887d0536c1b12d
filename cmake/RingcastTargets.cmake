# SPDX-License-Identifier: Apache-2.0
# The library: compiled once, as position-independent objects (each folder adds its files), then made into a shared and
# a static library.
#   ringcast::ringcast         the shared library
#   ringcast::ringcast_static  the static one
add_library(ringcast_objects OBJECT)
add_library(ringcast SHARED $<TARGET_OBJECTS:ringcast_objects> ${RINGCAST_LIBURING_OBJECTS})
add_library(ringcast_static STATIC $<TARGET_OBJECTS:ringcast_objects> ${RINGCAST_LIBURING_OBJECTS})
add_library(ringcast::ringcast ALIAS ringcast)
add_library(ringcast::ringcast_static ALIAS ringcast_static)

include(CheckCCompilerFlag)
check_c_compiler_flag(-fno-tree-slp-vectorize RINGCAST_SLP_FLAG)

# ringcast_own(<target>): our own code: C11, hidden symbols, includes written from the root,
# the warnings of our presets.
function(ringcast_own target)
  set_target_properties(${target} PROPERTIES C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS ON
                                             C_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  # Two words put together in a vector register before they are stored come out of it later than they were computed: of
  # a frame that is lent or read, the next call waits for them.
  if(RINGCAST_SLP_FLAG)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C>:-fno-tree-slp-vectorize>)
  endif()
  if(RINGCAST_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()
ringcast_own(ringcast_objects)

target_compile_definitions(ringcast_objects PRIVATE RINGCAST_HAVE_LIBURING=$<BOOL:${RINGCAST_HAVE_LIBURING}>)
set(libraries Threads::Threads ${CMAKE_DL_LIBS})
if(RINGCAST_LIBURING_FOUND)
  list(APPEND libraries PkgConfig::RINGCAST_LIBURING)
endif()
target_link_libraries(ringcast_objects PRIVATE ${libraries})

foreach(target ringcast ringcast_static)
  # The objects are C, but their language does not show through $<TARGET_OBJECTS>.
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ringcast LINKER_LANGUAGE C)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                              $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${target} PRIVATE ${libraries})
endforeach()

set(map ${PROJECT_SOURCE_DIR}/ringcast.map)
if(NOT DEFINED RINGCAST_FILE_VERSION)
  set(RINGCAST_FILE_VERSION ${RINGCAST_VERSION})
endif()
set_target_properties(ringcast PROPERTIES VERSION ${RINGCAST_FILE_VERSION} SOVERSION ${RINGCAST_SOVERSION}
                                          LINK_DEPENDS ${map})
# Threads that nobody joins may outlive all handles (gpu/worker.c), and run code of it when a program has unloaded it.
target_link_options(ringcast PRIVATE -Wl,--version-script=${map} -Wl,-z,nodelete)
