/* SPDX-License-Identifier: Apache-2.0 */
/* The version of ringcast. This file is its one home: CMake, the Python package and the library read it here. */
#ifndef RINGCAST_VERSION_H
#define RINGCAST_VERSION_H

#define RINGCAST_VERSION_MAJOR 0
#define RINGCAST_VERSION_MINOR 1
#define RINGCAST_VERSION_PATCH 0
#define RINGCAST_VERSION       "0.1.0"

#endif
