/* SPDX-License-Identifier: Apache-2.0 */
/* The version of ringcast. CMake, the Python package and the library read the version from this
 * file alone.
 *
 * Compatibility. The soname of the library is its major version: libringcast.so.0. As long as the
 * soname is 0, no exported symbol goes or changes its meaning, and a public struct changes only by
 * new fields at its end, if the struct begins with `size`. A program runs with every library of the
 * soname that is at least as new as the program's headers. Defaults, statistics and the layout of
 * shared memory may change: processes of one ring need one revision of the layout, and attach
 * refuses another (-EPROTO).
 *
 * Sources in C that compile with these headers compile with every later release of the soname.
 *
 * Not covered until a real GPU has run the functions: ringcast_gpu_* and the structs of
 * ringcast/gpu.h. Nor is ringcast.hpp, which is compiled into the program: until 1.0 a minor
 * version may change either. */
#ifndef RINGCAST_VERSION_H
#define RINGCAST_VERSION_H

#define RINGCAST_VERSION_MAJOR 0
#define RINGCAST_VERSION_MINOR 1
#define RINGCAST_VERSION_PATCH 0
#define RINGCAST_VERSION       "0.1.0"

#endif
