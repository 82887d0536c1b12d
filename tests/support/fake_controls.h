/* SPDX-License-Identifier: Apache-2.0 */
/* What a program can ask of the fake driver: see tests/fake_cuda/fake_cuda.h. */
#ifndef RC_TESTS_FAKE_CONTROLS_H
#define RC_TESTS_FAKE_CONTROLS_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fake_cuda/fake_cuda.h"

struct fake_controls {
#define FAKE_FIELD(type, name, arguments) type(*name) arguments;
  FAKE_CUDA_CONTROLS(FAKE_FIELD)
#undef FAKE_FIELD
};

/* Also in a child that shall say what is wrong by its status: so no assertion of check. */
static inline void *fake_symbol(void *library, const char *name) {
  void *found = library ? dlsym(library, name) : NULL;
  if (found) return found;
  fprintf(stderr, "libcuda.so.1 has no %s: the tests' own must be found first (LD_LIBRARY_PATH)\n",
          name);
  exit(1);
}

/* Opens the driver unless it is open, without cuInit. */
static inline const struct fake_controls *fake_cuda(void) {
  static struct fake_controls controls;
  if (controls.calls) return &controls;
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *found;
#define FAKE_FIND(type, name, arguments)            \
  found = fake_symbol(library, "fake_cuda_" #name); \
  memcpy(&controls.name, &found, sizeof controls.name);
  FAKE_CUDA_CONTROLS(FAKE_FIND)
#undef FAKE_FIND
  return &controls;
}

/* Whether a test started by hand would find it. A child looks: what is opened here stays here. */
static inline bool fake_is_found(void) {
  int status = 0;
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    _exit(!library || !dlsym(library, "fake_cuda_calls"));
  }
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

static inline bool fake_must_be_found(const char *test) {
  if (fake_is_found()) return true;
  fprintf(stderr, "%s: needs LD_LIBRARY_PATH=<build>/tests/fake_cuda/new\n", test);
  return false;
}

#endif
