/* SPDX-License-Identifier: Apache-2.0 */
/* Handles of device memory: which descriptor of which process. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fake_cuda/fake.h"

#define MAGIC 0xfa4ec0dau

struct handle {
  uint32_t magic;
  int32_t pid;
  int32_t fd;
  int32_t device; /* the machine's number for it */
  uint64_t start; /* of the process */
  uint64_t bytes;
  uint64_t inode; /* 0: whatever the descriptor is by now */
};
_Static_assert(sizeof(struct handle) <= sizeof(rc_cu_ipc_handle), "a handle holds it");

/* 0: there is no such process. */
static uint64_t start_of(int pid) {
  char path[40], text[1024] = "";
  unsigned long long start = 0;
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE *file = fopen(path, "re");
  if (!file) return 0;
  if (!fgets(text, sizeof text, file)) text[0] = '\0';
  fclose(file);
  const char *after = strrchr(text, ')');
  if (!after ||
      sscanf(after + 1,
             " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
             &start) != 1)
    return 0;
  return start;
}

rc_cu_result cuIpcGetMemHandle(rc_cu_ipc_handle *out, rc_cu_ptr pointer) {
  struct fake_memory *memory;
  BEGIN(ipc_get_handle, FAKE_CURRENT);
  if (!fake_resolve(pointer, 1, &memory) || memory->kind != FAKE_ALLOCATED || !memory->exportable)
    return fake_end(RC_CU_INVALID_VALUE);
  struct handle handle = {
      .magic = MAGIC,
      .pid = fake.pid,
      .fd = memory->fd,
      .device = fake.settings.visible[memory->context->device],
      .start = start_of(fake.pid),
      .bytes = memory->bytes,
      .inode = fake.settings.same_handle ? 0 : memory->inode,
  };
  memset(out, 0, sizeof *out);
  memcpy(out, &handle, sizeof handle);
  return fake_end(RC_CU_SUCCESS);
}

static rc_cu_result check(const struct handle *handle, const struct rc_cu_context *context) {
  if (handle->magic != MAGIC || handle->bytes == 0) return RC_CU_INVALID_HANDLE;
  if (handle->pid == fake.pid) return RC_CU_INVALID_CONTEXT;
  if (handle->start != start_of(handle->pid)) return RC_CU_INVALID_HANDLE;
  bool other = handle->device != fake.settings.visible[context->device];
  return other && fake.settings.no_peer ? RC_CU_PEER_ACCESS_UNSUPPORTED : RC_CU_SUCCESS;
}

/* The same memory is mapped once in a context. */
static rc_cu_result map(int fd, const struct handle *handle, struct rc_cu_context *context,
                        rc_cu_ptr *out) {
  struct stat file;
  if (fstat(fd, &file) != 0 || (handle->inode != 0 && file.st_ino != handle->inode) ||
      (uint64_t)file.st_size != handle->bytes)
    return RC_CU_INVALID_HANDLE;
  for (struct fake_memory *memory = fake.memory; memory; memory = memory->next) {
    if (memory->kind != FAKE_IMPORTED || memory->context != context || memory->going) continue;
    if (memory->volume != file.st_dev || memory->inode != file.st_ino) continue;
    memory->references++;
    *out = fake_pointer(memory);
    return RC_CU_SUCCESS;
  }
  void *host = mmap(NULL, handle->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (host == MAP_FAILED) return RC_CU_MAP_FAILED;
  *out = fake_pointer(fake_memory_add((struct fake_memory){.kind = FAKE_IMPORTED,
                                                           .context = context,
                                                           .host = host,
                                                           .bytes = handle->bytes,
                                                           .volume = file.st_dev,
                                                           .inode = file.st_ino,
                                                           .references = 1}));
  return RC_CU_SUCCESS;
}

rc_cu_result cuIpcOpenMemHandle_v2(rc_cu_ptr *out, rc_cu_ipc_handle bytes, unsigned flags) {
  struct handle handle;
  char path[48];
  BEGIN(ipc_open_handle, FAKE_CURRENT);
  memcpy(&handle, &bytes, sizeof handle);
  result = flags != RC_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ? RC_CU_INVALID_VALUE
                                                          : check(&handle, context);
  if (result != RC_CU_SUCCESS) return fake_end(result);
  snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.pid, handle.fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return fake_end(RC_CU_INVALID_HANDLE);
  result = map(fd, &handle, context, out);
  close(fd);
  return fake_end(result);
}

rc_cu_result cuIpcCloseMemHandle(rc_cu_ptr pointer) {
  struct fake_memory *memory;
  BEGIN(ipc_close_handle, FAKE_GIVES_BACK);
  if (!fake_resolve(pointer, 1, &memory) || memory->kind != FAKE_IMPORTED ||
      fake_pointer(memory) != pointer)
    return fake_end(RC_CU_INVALID_VALUE);
  if (--memory->references == 0) fake_memory_drop(memory);
  return fake_end(context->broken);
}
