# SPDX-License-Identifier: Apache-2.0
# record, replay and dump. The files are hashed with XXH3, whole in its header: nothing is linked.
find_path(XXHASH_INCLUDE_DIR xxhash.h)
if(XXHASH_INCLUDE_DIR)
  target_sources(ringcast_tool PRIVATE
    dump.c dump_frame.c dump_value.c disk.c record.c record_run.c
    recording_read.c recording_write.c replay.c)
  target_include_directories(ringcast_tool SYSTEM PRIVATE ${XXHASH_INCLUDE_DIR})
  # A copy and its hash are the recorder's work.
  set_source_files_properties(recording_write.c recording_read.c PROPERTIES COMPILE_OPTIONS -O3)
else()
  message(STATUS "ringcast: record, replay and dump are left out, as xxhash.h (Debian: libxxhash-dev) is missing")
endif()
target_compile_definitions(ringcast_tool PRIVATE RINGCAST_HAVE_XXHASH=$<BOOL:${XXHASH_INCLUDE_DIR}>)
target_link_libraries(ringcast_tool PRIVATE Threads::Threads)
