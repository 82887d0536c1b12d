/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dtypes with names in a frame, torch and NumPy. Any other dtype goes inside a pickle: of
 * torch's, the quantized ones, whose bytes alone don't give the values.
 *
 * torch stores int1 to int7 in a byte each: such dtypes are padded. To DLPack, torch's bits8 and
 * the like are opaque, with the bits and lanes in the name.
 */
#include "python/extension/tensors.h"

/* DLPack's codes, as in frame.h. */
enum { INT = 0, UINT = 1, FLOAT = 2, OPAQUE = 3, BFLOAT = 4, COMPLEX = 5, BOOL = 6 };
enum { E4M3FN = 10, E4M3FNUZ = 11, E5M2 = 12, E5M2FNUZ = 13, E8M0FNU = 14, E2M1FN = 17 };
#define PADDED(code, bits, name) \
  { {code, bits, 1}, name, NULL, RINGCAST_ITEM_PADDED }

const struct rc_py_dtype rc_py_dtypes[RC_PY_DTYPES] = {
    {{BOOL, 8, 1}, "bool", "bool", 0},
    {{UINT, 8, 1}, "uint8", "uint8", 0},
    {{INT, 8, 1}, "int8", "int8", 0},
    {{INT, 16, 1}, "int16", "int16", 0},
    {{INT, 32, 1}, "int32", "int32", 0},
    {{INT, 64, 1}, "int64", "int64", 0},
    {{UINT, 16, 1}, "uint16", "uint16", 0},
    {{UINT, 32, 1}, "uint32", "uint32", 0},
    {{UINT, 64, 1}, "uint64", "uint64", 0},
    {{FLOAT, 16, 1}, "float16", "float16", 0},
    {{FLOAT, 32, 1}, "float32", "float32", 0},
    {{FLOAT, 64, 1}, "float64", "float64", 0},
    {{BFLOAT, 16, 1}, "bfloat16", NULL, 0},
    {{COMPLEX, 32, 1}, "complex32", NULL, 0},
    {{COMPLEX, 64, 1}, "complex64", "complex64", 0},
    {{COMPLEX, 128, 1}, "complex128", "complex128", 0},
    {{E4M3FN, 8, 1}, "float8_e4m3fn", NULL, 0},
    {{E4M3FNUZ, 8, 1}, "float8_e4m3fnuz", NULL, 0},
    {{E5M2, 8, 1}, "float8_e5m2", NULL, 0},
    {{E5M2FNUZ, 8, 1}, "float8_e5m2fnuz", NULL, 0},
    {{E8M0FNU, 8, 1}, "float8_e8m0fnu", NULL, 0},
    {{E2M1FN, 4, 2}, "float4_e2m1fn_x2", NULL, 0},
    {{OPAQUE, 8, 1}, "bits8", NULL, 0},
    {{OPAQUE, 16, 1}, "bits16", NULL, 0},
    {{OPAQUE, 1, 8}, "bits1x8", NULL, 0},
    {{OPAQUE, 2, 4}, "bits2x4", NULL, 0},
    {{OPAQUE, 4, 2}, "bits4x2", NULL, 0},
    PADDED(INT, 1, "int1"),
    PADDED(INT, 2, "int2"),
    PADDED(INT, 3, "int3"),
    PADDED(INT, 4, "int4"),
    PADDED(INT, 5, "int5"),
    PADDED(INT, 6, "int6"),
    PADDED(INT, 7, "int7"),
    PADDED(UINT, 1, "uint1"),
    PADDED(UINT, 2, "uint2"),
    PADDED(UINT, 3, "uint3"),
    PADDED(UINT, 4, "uint4"),
    PADDED(UINT, 5, "uint5"),
    PADDED(UINT, 6, "uint6"),
    PADDED(UINT, 7, "uint7"),
};

static int find(struct ringcast_dtype dtype, uint32_t padded) {
  for (int i = 0; i < RC_PY_DTYPES; i++) {
    const struct ringcast_dtype *known = &rc_py_dtypes[i].dtype;
    if (known->code != dtype.code || known->bits != dtype.bits || known->lanes != dtype.lanes)
      continue;
    if (rc_py_dtypes[i].flags == padded) return i;
  }
  return -1;
}

int rc_py_dtype_find(struct ringcast_dtype dtype) { return find(dtype, 0); }

int rc_py_dtype_of(const struct ringcast_item *item) {
  return find(item->dtype, item->flags & RINGCAST_ITEM_PADDED);
}

PyObject *rc_py_dims(const int64_t *dims, int32_t ndim, int64_t unit) {
  PyObject *tuple = PyTuple_New(ndim);
  for (int32_t i = 0; tuple && i < ndim; i++) {
    PyObject *number = PyLong_FromLongLong((int64_t)((uint64_t)dims[i] * (uint64_t)unit));
    if (number) PyTuple_SET_ITEM(tuple, i, number);
    else Py_CLEAR(tuple);
  }
  return tuple;
}

bool rc_py_is_c_order(int32_t ndim, const int64_t *shape, const int64_t *strides) {
  int64_t expected = 1;
  for (int32_t i = 0; i < ndim; i++) {
    if (shape[i] == 0) return true;
  }
  for (int32_t i = ndim - 1; i >= 0; i--) {
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

struct ringcast_tensor rc_py_tensor_of(const struct ringcast_item *item) {
  return (struct ringcast_tensor){
      .data = item->data,
      .dtype = item->dtype,
      .ndim = item->ndim,
      .shape = item->shape,
      .strides = item->strides,
      .flags = item->flags,
  };
}

/* The library checks the strides of a tensor that claims to be dense. */
bool rc_py_is_dense(const struct ringcast_tensor *tensor, uint64_t *bytes) {
  struct ringcast_tensor dense = *tensor;
  dense.flags |= RINGCAST_TENSOR_DENSE;
  return ringcast_tensor_bytes(&dense, bytes) == 0;
}

void rc_py_source_clear(struct rc_py_source *source) {
  if (source->view.obj) PyBuffer_Release(&source->view);
  Py_CLEAR(source->keep);
  Py_CLEAR(source->storage);
  PyMem_Free(source->dims);
  source->dims = NULL;
  source->is_on_device = false;
}
