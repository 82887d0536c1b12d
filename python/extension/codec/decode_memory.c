/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for an entry's value, and the copy into it. */
#include "python/extension/codec/decode.h"

bool rc_py_damaged(struct rc_py_decoding *decoding, const char *what) {
  rc_py_raise_damaged(decoding->state, what);
  return false;
}

bool rc_py_take_bytes(struct rc_py_decoding *decoding, uint64_t bytes) {
  if (bytes > decoding->frame.bytes - decoding->taken)
    return rc_py_damaged(decoding, "its entries share their bytes");
  decoding->taken += bytes;
  return true;
}

bool rc_py_copy_add(struct rc_py_decoding *decoding, const void *from, uint64_t bytes) {
  if (!rc_py_take_bytes(decoding, bytes)) return false;
  if (!rc_py_grow((void **)&decoding->copies, decoding->copy_count, &decoding->copy_room,
                  sizeof *decoding->copies)) {
    return false;
  }
  decoding->copy_bytes += bytes;
  decoding->copies[decoding->copy_count++] = (struct rc_py_copy){.from = from, .bytes = bytes};
  return true;
}

bool rc_py_goes_to_torch(const struct ringcast_item *item) {
  int index = rc_py_dtype_of(item);
  return item->flags & RINGCAST_ITEM_TORCH ||
         (!(item->flags & RINGCAST_ITEM_NUMPY) && index >= 0 && !rc_py_dtypes[index].numpy);
}

PyObject *rc_py_make_array(struct rc_py_decoding *decoding, const struct ringcast_item *item,
                           uint64_t bytes, void **out) {
  return rc_py_goes_to_torch(item) ? rc_py_torch_make(decoding->state, item, bytes, out)
                                   : rc_py_numpy_make(decoding->state, item, bytes, out);
}
