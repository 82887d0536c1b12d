# SPDX-License-Identifier: Apache-2.0
# Toolchain of cmake/wheels.sh: clang as zig brings it, which links against glibc 2.28 for either architecture, whatever
# this machine has. The CPU is the oldest of the architecture.
set(arch $ENV{RINGCAST_WHEEL_ARCH})
set(zig $ENV{RINGCAST_WHEEL_ZIG})
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${arch})
set(CMAKE_C_COMPILER ${zig} cc -target ${arch}-linux-gnu.2.28)
set(CMAKE_C_ARCHIVE_CREATE "${zig} ar qc <TARGET> <OBJECTS>")
set(CMAKE_C_ARCHIVE_FINISH "${zig} ranlib <TARGET>")

# Headers of Debian's packages, and nothing else of the machine.
set(sysroot $ENV{RINGCAST_WHEEL_SYSROOT}/usr)
set(CMAKE_FIND_ROOT_PATH ${sysroot})
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_C_FLAGS_INIT "-g0 -fno-sanitize=undefined -fPIC")
string(APPEND CMAKE_C_FLAGS_INIT " -isystem ${sysroot}/include -isystem ${sysroot}/include/${arch}-linux-gnu")
foreach(kind EXE SHARED MODULE)
  set(CMAKE_${kind}_LINKER_FLAGS_INIT -s)
endforeach()
string(APPEND CMAKE_EXE_LINKER_FLAGS_INIT " -pie") # zig's clang makes no such program by itself
string(APPEND CMAKE_SHARED_LINKER_FLAGS_INIT " -Wl,--no-undefined")
