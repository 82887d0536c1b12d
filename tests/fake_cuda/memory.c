/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: of devices, each allocation a memfd, and of the host, registered. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fake_cuda/fake.h"

enum { MOST_SIZES = 32, FIRST_FIXED = 600 };
#define TOTAL_BYTES ((size_t)16 << 30)
#define FREED       0xdd

/* ---- The list -------------------------------------------------------------------------------- */

rc_cu_ptr fake_pointer(const struct fake_memory *memory) {
  return (rc_cu_ptr)(uintptr_t)memory->host |
         (memory->kind == FAKE_REGISTERED ? FAKE_TAG_REGISTERED : FAKE_TAG_DEVICE);
}

static bool is_inside(const struct fake_memory *memory, const uint8_t *host, size_t bytes) {
  return host >= memory->host && bytes <= memory->bytes &&
         (size_t)(host - memory->host) <= memory->bytes - bytes;
}

uint8_t *fake_resolve(rc_cu_ptr pointer, size_t bytes, struct fake_memory **out) {
  uint8_t *host = (uint8_t *)(uintptr_t)(pointer & ~FAKE_TAG_MASK);
  rc_cu_ptr tag = pointer & FAKE_TAG_MASK;
  for (struct fake_memory *memory = fake.memory; memory; memory = memory->next) {
    if ((fake_pointer(memory) & FAKE_TAG_MASK) != tag || memory->going ||
        !is_inside(memory, host, bytes))
      continue;
    *out = memory;
    return host;
  }
  return NULL;
}

/* The registered memory that some of these bytes are in. *outside: not all of them. */
struct fake_memory *fake_host_memory(const void *host, size_t bytes, bool *outside) {
  const uint8_t *from = host;
  *outside = false;
  for (struct fake_memory *memory = fake.memory; memory; memory = memory->next) {
    if (memory->kind != FAKE_REGISTERED || memory->going) continue;
    if (from >= memory->host + memory->bytes || memory->host >= from + bytes) continue;
    *outside = !is_inside(memory, from, bytes);
    return memory;
  }
  return NULL;
}

struct fake_memory *fake_memory_add(struct fake_memory memory) {
  struct fake_memory *added = malloc(sizeof *added);
  if (!added) abort();
  *added = memory;
  added->next = fake.memory;
  fake.memory = added;
  return added;
}

void fake_memory_drop(struct fake_memory *memory) {
  struct fake_memory **at = &fake.memory;
  memory->going = true;
  while (memory->pins > 0) pthread_cond_wait(&fake.changed, &fake.lock);
  while (*at != memory) at = &(*at)->next;
  *at = memory->next;
  if (memory->kind != FAKE_REGISTERED || memory->is_own) munmap(memory->host, memory->bytes);
  if (memory->kind == FAKE_ALLOCATED) close(memory->fd);
  free(memory);
}

/* Other processes that have the memory open see it too. Only where the file has pages: a pool of
 * 256 MiB that nothing was written to costs nothing. */
void fake_overwrite(struct fake_memory *memory) {
  off_t from = 0, to;
  while ((from = lseek(memory->fd, from, SEEK_DATA)) >= 0) {
    to = lseek(memory->fd, from, SEEK_HOLE);
    memset(memory->host + from, FREED, (size_t)(to - from));
    from = to;
  }
}

static void give_up(struct fake_memory *memory) {
  memory->going = true;
  while (memory->pins > 0) pthread_cond_wait(&fake.changed, &fake.lock);
  fake_overwrite(memory);
  fake_memory_drop(memory);
}

void fake_memory_end(struct rc_cu_context *context) {
  for (struct fake_memory *memory = fake.memory, *next; memory; memory = next) {
    next = memory->next;
    if (memory->context != context) continue;
    fake.lost++;
    if (memory->kind == FAKE_ALLOCATED) give_up(memory);
    else fake_memory_drop(memory);
  }
}

/* ---- Of devices ------------------------------------------------------------------------------ */

/* With the same number for each allocation of one size, if nobody has it now. */
static int fix_number(int fd, size_t bytes) {
  static size_t sizes[MOST_SIZES];
  int at = 0;
  while (at < MOST_SIZES && sizes[at] != 0 && sizes[at] != bytes) at++;
  if (at == MOST_SIZES || fcntl(FIRST_FIXED + at, F_GETFD) != -1) return fd;
  sizes[at] = bytes;
  int fixed = dup3(fd, FIRST_FIXED + at, O_CLOEXEC);
  if (fixed < 0) return fd;
  close(fd);
  return fixed;
}

static size_t free_bytes(const struct rc_cu_context *context) {
  size_t used = 0;
  for (struct fake_memory *memory = fake.memory; memory; memory = memory->next)
    if (memory->context == context && memory->kind == FAKE_ALLOCATED) used += memory->bytes;
  return TOTAL_BYTES - used;
}

static rc_cu_result allocate(struct rc_cu_context *context, size_t bytes, bool exportable,
                             rc_cu_ptr *out) {
  struct fake_memory memory = {.kind = FAKE_ALLOCATED,
                               .context = context,
                               .bytes = bytes,
                               .exportable = exportable,
                               .references = 1};
  struct stat file;
  if (bytes == 0) return RC_CU_INVALID_VALUE;
  if (bytes > free_bytes(context)) return RC_CU_OUT_OF_MEMORY;
  memory.fd = memfd_create("fake-cuda", MFD_CLOEXEC);
  if (memory.fd < 0) return RC_CU_OUT_OF_MEMORY;
  if (fake.settings.same_handle) memory.fd = fix_number(memory.fd, bytes);
  void *host = MAP_FAILED;
  if (ftruncate(memory.fd, (off_t)bytes) == 0 && fstat(memory.fd, &file) == 0)
    host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd, 0);
  if (host == MAP_FAILED) {
    close(memory.fd);
    return RC_CU_OUT_OF_MEMORY;
  }
  memory.host = host;
  memory.volume = file.st_dev;
  memory.inode = file.st_ino;
  *out = fake_pointer(fake_memory_add(memory));
  return RC_CU_SUCCESS;
}

rc_cu_result cuMemAlloc_v2(rc_cu_ptr *out, size_t bytes) {
  struct rc_cu_context *context;
  rc_cu_result result = fake_begin(FAKE_mem_alloc, FAKE_CURRENT, &context);
  return result == RC_CU_SUCCESS ? fake_end(allocate(context, bytes, true, out)) : result;
}

/* The allocation that begins at `pointer`. */
static struct fake_memory *find_allocation(rc_cu_ptr pointer) {
  struct fake_memory *memory;
  bool found = fake_resolve(pointer, 1, &memory) && memory->kind == FAKE_ALLOCATED &&
               fake_pointer(memory) == pointer;
  return found ? memory : NULL;
}

rc_cu_result cuMemFree_v2(rc_cu_ptr pointer) {
  BEGIN(mem_free, FAKE_GIVES_BACK);
  struct fake_memory *memory = find_allocation(pointer);
  if (!memory) return fake_end(RC_CU_INVALID_VALUE);
  fake_streams_wait(memory->context);
  give_up(memory);
  return fake_end(context->broken);
}

rc_cu_result cuMemAllocAsync(rc_cu_ptr *out, size_t bytes, rc_cu_stream stream) {
  BEGIN(mem_alloc_async, FAKE_CURRENT);
  struct rc_cu_stream *found = fake_stream_find(context, stream);
  result = found ? fake_check_work(found) : RC_CU_INVALID_HANDLE;
  return fake_end(result == RC_CU_SUCCESS ? allocate(context, bytes, false, out) : result);
}

rc_cu_result cuMemFreeAsync(rc_cu_ptr pointer, rc_cu_stream stream) {
  BEGIN(mem_free_async, FAKE_GIVES_BACK);
  struct fake_memory *memory = find_allocation(pointer);
  struct rc_cu_stream *found = fake_stream_find(context, stream);
  if (!memory || !found) return fake_end(RC_CU_INVALID_VALUE);
  result = fake_check_work(found);
  if (result != RC_CU_SUCCESS) return fake_end(result);
  if (context->broken == RC_CU_SUCCESS) return fake_end(fake_free_in_order(found, memory));
  give_up(memory);
  return fake_end(context->broken);
}

rc_cu_result cuMemGetInfo_v2(size_t *out_free, size_t *out_total) {
  BEGIN(mem_get_info, FAKE_CURRENT);
  *out_total = TOTAL_BYTES;
  *out_free = free_bytes(context);
  return fake_end(RC_CU_SUCCESS);
}

rc_cu_result cuMemGetAddressRange_v2(rc_cu_ptr *out_base, size_t *out_bytes, rc_cu_ptr inside) {
  struct fake_memory *memory;
  BEGIN(mem_get_address_range, FAKE_CURRENT);
  if (!fake_resolve(inside, 1, &memory) || memory->kind == FAKE_REGISTERED)
    return fake_end(RC_CU_NOT_FOUND);
  if (out_base) *out_base = fake_pointer(memory);
  if (out_bytes) *out_bytes = memory->bytes;
  return fake_end(RC_CU_SUCCESS);
}

/* ---- Of the host ----------------------------------------------------------------------------- */

rc_cu_result cuMemHostRegister_v2(void *host, size_t bytes, unsigned flags) {
  const unsigned known = RC_CU_MEMHOSTREGISTER_PORTABLE | RC_CU_MEMHOSTREGISTER_DEVICEMAP;
  bool outside;
  BEGIN(host_register, FAKE_CURRENT);
  if (flags & ~known || bytes == 0) return fake_end(RC_CU_INVALID_VALUE);
  if (fake_host_memory(host, bytes, &outside))
    return fake_end(RC_CU_HOST_MEMORY_ALREADY_REGISTERED);
  fake_memory_add((struct fake_memory){
      .kind = FAKE_REGISTERED, .context = context, .host = host, .bytes = bytes});
  return fake_end(RC_CU_SUCCESS);
}

rc_cu_result cuMemHostUnregister(void *host) {
  bool outside;
  BEGIN(host_unregister, FAKE_GIVES_BACK);
  struct fake_memory *memory = fake_host_memory(host, 1, &outside);
  if (!memory || memory->host != host || memory->is_own)
    return fake_end(RC_CU_HOST_MEMORY_NOT_REGISTERED);
  fake_memory_drop(memory);
  return fake_end(context->broken);
}

rc_cu_result cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
  BEGIN(host_alloc, FAKE_CURRENT);
  if (flags & ~(unsigned)RC_CU_MEMHOSTALLOC_PORTABLE || bytes == 0)
    return fake_end(RC_CU_INVALID_VALUE);
  void *host =
      mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (host == MAP_FAILED) return fake_end(RC_CU_OUT_OF_MEMORY);
  fake_memory_add((struct fake_memory){
      .kind = FAKE_REGISTERED, .context = context, .host = host, .bytes = bytes, .is_own = true});
  *out = host;
  return fake_end(RC_CU_SUCCESS);
}

rc_cu_result cuMemFreeHost(void *host) {
  bool outside;
  BEGIN(host_free, FAKE_GIVES_BACK);
  struct fake_memory *memory = fake_host_memory(host, 1, &outside);
  if (!memory || memory->host != host || !memory->is_own) return fake_end(RC_CU_INVALID_VALUE);
  fake_memory_drop(memory);
  return fake_end(context->broken);
}

rc_cu_result cuMemHostGetDevicePointer_v2(rc_cu_ptr *out, void *host, unsigned flags) {
  bool outside;
  BEGIN(host_get_device_pointer, FAKE_CURRENT);
  struct fake_memory *memory = fake_host_memory(host, 1, &outside);
  if (!memory || flags != 0) return fake_end(RC_CU_INVALID_VALUE);
  *out = (rc_cu_ptr)(uintptr_t)host | FAKE_TAG_REGISTERED;
  return fake_end(RC_CU_SUCCESS);
}
