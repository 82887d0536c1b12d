/* SPDX-License-Identifier: Apache-2.0 */
/* Computes a tensor's bytes from the dtype, shape and strides. The functions check all three and
 * trust no value. */
#ifndef RC_RING_TENSOR_H
#define RC_RING_TENSOR_H

#include <stdbool.h>

#include "ringcast/frame.h"

/* The bits of one element, all lanes together. 0: the dtype is invalid, or the flags say "padded"
 * although an element has whole bytes. */
uint32_t rc_element_bits(struct ringcast_dtype dtype, uint32_t flags);

/* The number of elements, and the strides of C order (`strides` may be NULL). A dimension of 0
 * counts as 1 in the strides, as in torch. -EINVAL: ndim or shape is out of range, or the count,
 * with each 0 taken as 1, exceeds INT64_MAX. */
int rc_shape_layout(int32_t ndim, const int64_t *shape, int64_t *strides, int64_t *out_count);

/* The bytes of `count` elements without gaps. -EINVAL: more than INT64_MAX. */
int rc_packed_bytes(uint32_t bits, int64_t count, uint64_t *out);

/* Whether the tensor is in C order. Strides of dimensions of size 1, and of empty tensors, do not
 * count. rc_shape_layout has accepted the shape. */
bool rc_strides_are_c(int32_t ndim, const int64_t *shape, const int64_t *strides);

/* Whether the tensor has no gaps: the strides are those of C order, with the axes in any order. */
bool rc_strides_are_dense(int32_t ndim, const int64_t *shape, const int64_t *strides);

#endif
