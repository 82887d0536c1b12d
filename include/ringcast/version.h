/* SPDX-License-Identifier: Apache-2.0 */
/* The version of ringcast. CMake, the Python package and the library read the version from this file alone. */
#ifndef RINGCAST_VERSION_H
#define RINGCAST_VERSION_H

#define RINGCAST_VERSION_MAJOR 0
#define RINGCAST_VERSION_MINOR 1
#define RINGCAST_VERSION_PATCH 0
#define RINGCAST_VERSION       "0.1.0"

#endif
