/* SPDX-License-Identifier: Apache-2.0 */
/* The dtypes that a frame, torch and NumPy have names for. A dtype that is not here goes inside a pickle. */
#include "extension.h"

/* DLPack's codes, as in frame.h. */
enum { INT = 0, UINT = 1, FLOAT = 2, BFLOAT = 4, COMPLEX = 5, BOOL = 6 };
enum { E4M3FN = 10, E4M3FNUZ = 11, E5M2 = 12, E5M2FNUZ = 13, E8M0FNU = 14 };

const struct rc_py_dtype rc_py_dtypes[RC_PY_DTYPES] = {
    {{BOOL, 8, 1}, "bool", "bool"},
    {{UINT, 8, 1}, "uint8", "uint8"},
    {{INT, 8, 1}, "int8", "int8"},
    {{INT, 16, 1}, "int16", "int16"},
    {{INT, 32, 1}, "int32", "int32"},
    {{INT, 64, 1}, "int64", "int64"},
    {{UINT, 16, 1}, "uint16", "uint16"},
    {{UINT, 32, 1}, "uint32", "uint32"},
    {{UINT, 64, 1}, "uint64", "uint64"},
    {{FLOAT, 16, 1}, "float16", "float16"},
    {{FLOAT, 32, 1}, "float32", "float32"},
    {{FLOAT, 64, 1}, "float64", "float64"},
    {{BFLOAT, 16, 1}, "bfloat16", NULL},
    {{COMPLEX, 32, 1}, "complex32", NULL},
    {{COMPLEX, 64, 1}, "complex64", "complex64"},
    {{COMPLEX, 128, 1}, "complex128", "complex128"},
    {{E4M3FN, 8, 1}, "float8_e4m3fn", NULL},
    {{E4M3FNUZ, 8, 1}, "float8_e4m3fnuz", NULL},
    {{E5M2, 8, 1}, "float8_e5m2", NULL},
    {{E5M2FNUZ, 8, 1}, "float8_e5m2fnuz", NULL},
    {{E8M0FNU, 8, 1}, "float8_e8m0fnu", NULL},
};

int rc_py_dtype_find(struct ringcast_dtype dtype) {
  for (int i = 0; i < RC_PY_DTYPES; i++) {
    const struct ringcast_dtype *known = &rc_py_dtypes[i].dtype;
    if (known->code == dtype.code && known->bits == dtype.bits && known->lanes == dtype.lanes) return i;
  }
  return -1;
}

PyObject *rc_py_shape(const struct ringcast_item *item) {
  PyObject *shape = PyTuple_New(item->ndim);
  for (int32_t i = 0; shape && i < item->ndim; i++) {
    PyObject *size = PyLong_FromLongLong(item->shape[i]);
    if (!size) {
      Py_CLEAR(shape);
      break;
    }
    PyTuple_SET_ITEM(shape, i, size);
  }
  return shape;
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

void rc_py_source_clear(struct rc_py_source *source) {
  if (source->view.obj) PyBuffer_Release(&source->view);
  Py_CLEAR(source->keep);
  PyMem_Free(source->dims);
  source->dims = NULL;
}
