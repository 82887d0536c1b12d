/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of device tensors made by hand, one call after the other. */
#ifndef RC_TESTS_GPU_DRAFT_H
#define RC_TESTS_GPU_DRAFT_H

#include "tests/support/gpu_channel.h"

/* A frame of one tensor in the pool, reserved, built and leased, but not committed. */
struct draft {
  struct ringcast_gpu_extent lease;
  uint64_t offset;
  size_t bytes;
};

static inline int lease_bytes(uint64_t bytes, struct draft *out) {
  return ringcast_gpu_lease(gpu_writer, &bytes, 1, &out->offset, &out->lease);
}

static inline void draft(uint64_t bytes, struct draft *out) {
  struct ringcast_frame_plan plan = {0};
  struct ringcast_frame_builder builder;
  struct ringcast_span span;
  int64_t shape[1] = {(int64_t)bytes};
  struct ringcast_tensor tensor = bytes_on_device(source, shape);
  tensor.flags = RINGCAST_ITEM_CUDA;
  ck_assert_int_eq(lease_bytes(bytes, out), 0);
  ringcast_plan_device_tensor(&plan, 1, 1);
  ck_assert_int_eq(ringcast_writer_reserve(writer, ringcast_plan_bytes(&plan), 0, &span), 0);
  ck_assert_int_eq(ringcast_build_begin(&builder, span.data, span.bytes, &plan, RINGCAST_ROOT_DICT, 0), 0);
  ck_assert_int_eq(ringcast_build_device_tensor(&builder, "x", 1, &tensor, out->offset), 0);
  ck_assert_int_eq(ringcast_build_device(&builder, out->lease.slot, out->lease.epoch, out->lease.generation), 0);
  ck_assert_int_eq(ringcast_build_end(&builder, &out->bytes), 0);
}

static inline int copy_in(const struct draft *draft, int64_t at, int64_t bytes) {
  int64_t shape[1] = {bytes};
  struct ringcast_tensor tensor = bytes_on_device(source + (rc_cu_ptr)at, shape);
  return ringcast_gpu_copy_in(gpu_writer, &draft->lease, draft->offset, &tensor, stream);
}

static inline void nothing_came(void) {
  struct ringcast_frame frame;
  ck_assert_int_eq(ringcast_gpu_next(gpu_reader, 0, &frame), -EAGAIN);
}

#endif
