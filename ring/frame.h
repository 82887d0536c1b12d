/* SPDX-License-Identifier: Apache-2.0 */
/* Typed frames (frame.c), and the packing of tensors (tensor.c): what the two and gpu/ share beside
 * ringcast/frame.h. */
#ifndef RC_RING_FRAME_H
#define RC_RING_FRAME_H

#include <stdbool.h>

#include "ringcast/frame.h"

/* The bits of one element, all lanes together. 0: the dtype is invalid, or the flags say "padded"
 * although an element has whole bytes. */
uint32_t rc_element_bits(struct ringcast_dtype dtype, uint32_t flags);

/* Whether the tensor is in C order. Strides of dimensions of size 1, and of empty tensors, do not
 * count. The shape is valid. */
bool rc_strides_are_c(int32_t ndim, const int64_t *shape, const int64_t *strides);

#endif
