/* SPDX-License-Identifier: Apache-2.0 */
/* What a tensor's dtype, shape and strides say about its bytes. Nothing in them is trusted. */
#ifndef RC_RING_TENSOR_H
#define RC_RING_TENSOR_H

#include <stdbool.h>

#include "ringcast/frame.h"

/* Bits from one element to the next, all lanes together; 0 if it is no dtype, or its flags say that it is padded and
 * there is nothing to pad. */
uint32_t rc_element_bits(struct ringcast_dtype dtype, uint32_t flags);

/* The number of elements, and the strides of C order (`strides` NULL: not wanted). A dimension of 0 counts as 1 in the
 * strides, as in torch. -EINVAL: ndim or shape out of range, or the count, with each 0 taken as 1, above INT64_MAX. */
int rc_shape_layout(int32_t ndim, const int64_t *shape, int64_t *strides, int64_t *out_count);

/* Bytes of `count` elements without gaps. -EINVAL if above INT64_MAX. */
int rc_packed_bytes(uint32_t bits, int64_t count, uint64_t *out);

/* Whether the strides are those of C order, as far as they matter. The shape is one that rc_shape_layout accepts. */
bool rc_strides_are_c(int32_t ndim, const int64_t *shape, const int64_t *strides);

#endif
