/* SPDX-License-Identifier: Apache-2.0 */
/* The frames in tests/vectors: what each is made of, and what it means. test_frame_vectors builds and reads them. */
#ifndef RC_TESTS_VECTORS_H
#define RC_TESTS_VECTORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ringcast/object.h"

#define HEADER(field)       offsetof(struct ringcast_frame_header, field)
#define ENTRY(index, field) (48 + 64 * (index) + offsetof(struct ringcast_frame_entry, field))

struct entry {
  uint16_t kind;
  const char *key; /* NULL: none */
  uint32_t flags;
  const void *data; /* as the frame has it */
  uint64_t bytes;
  int64_t value; /* of FLOAT: the bits; of OBJECT: PARTS */
  uint64_t hash;
  const char *meaning; /* of OBJECT: its value as JSON, but with ' for " */
  struct ringcast_dtype dtype;
  int32_t ndim;
  int64_t shape[RINGCAST_MAX_NDIM], strides[RINGCAST_MAX_NDIM];
  const void *source; /* of a tensor that isn't in C order before it is sent; else NULL */
  int64_t source_strides[3];
  uint8_t placement;
  uint64_t offset, lent; /* of POOL and EXTERN, which have no data */
};

struct vector {
  const char *name, *about;
  enum ringcast_root root;
  uint32_t tag;
  struct entry entries[6];
  uint32_t count;
  uint16_t version;     /* 0 stands for 1 */
  uint32_t slot, epoch; /* of ringcast_build_device; epoch 0: it is not called */
  uint64_t generation;
  /* What is overwritten after building: what no builder makes. */
  size_t patch_offset, patch_bytes;
  uint8_t patch[32];
  bool damaged; /* so that a reader must refuse the header, an entry, or what an OBJECT holds */
};

static const uint8_t COUNTING[64] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                     16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
#define F32 \
  { 2, 32, 1 }
#define DICT(number)  .root = RINGCAST_ROOT_DICT, .tag = (number)
#define VALUE(number) .root = RINGCAST_ROOT_VALUE, .tag = (number)
#define ONE_TENSOR                                    \
  DICT(1), .count = 1,                                \
           .entries = {{.kind = RINGCAST_ITEM_TENSOR, \
                        .key = "t",                   \
                        .dtype = F32,                 \
                        .ndim = 2,                    \
                        .shape = {2, 3},              \
                        .strides = {3, 1},            \
                        .data = COUNTING,             \
                        .bytes = 24}}
/* Tensors of a device: in the pool, a text beside it; in memory that is lent; in the frame. */
#define WORDS .version = 3, .slot = 5, .epoch = 2, .generation = 77
#define DEVICE_TENSOR \
  .kind = RINGCAST_ITEM_TENSOR, .dtype = F32, .ndim = 2, .shape = {2, 3}, .strides = {3, 1}, .bytes = 24
#define ONE_POOL                                                                                             \
  DICT(1), WORDS, .count = 2,                                                                                \
                  .entries = {{DEVICE_TENSOR, .key = "t", .flags = RINGCAST_ITEM_TORCH | RINGCAST_ITEM_CUDA, \
                               .placement = RINGCAST_PLACEMENT_POOL, .offset = 512},                         \
                              {.kind = RINGCAST_ITEM_STR, .key = "s", .data = "text", .bytes = 4}}
#define ONE_EXTERN                                                                                           \
  DICT(1), WORDS, .count = 1,                                                                                \
                  .entries = {{DEVICE_TENSOR, .key = "t", .flags = RINGCAST_ITEM_TORCH | RINGCAST_ITEM_CUDA, \
                               .placement = RINGCAST_PLACEMENT_EXTERN, .offset = 100, .lent = 3}}
#define ONE_INLINE_CUDA         \
  DICT(1),                      \
      .version = 3, .count = 1, \
      .entries = {{DEVICE_TENSOR, .key = "t", .flags = RINGCAST_ITEM_TORCH | RINGCAST_ITEM_CUDA, .data = COUNTING}}
#define PATCH(where, ...) \
  .patch_offset = (where), .patch = {__VA_ARGS__}, .patch_bytes = sizeof((uint8_t[]){__VA_ARGS__})
#define WORD(value) (value), 0, 0, 0, 0, 0, 0, 0

/* An OBJECT: its stream, and the entries that are its parts. */
#define PARTS(first, count) .value = (int64_t)((uint64_t)(count) << 32 | (first))
#define OBJECT(stream)      .kind = RINGCAST_ITEM_OBJECT, .data = (stream), .bytes = sizeof(stream) - 1
#define ONE_OBJECT(stream)  VALUE(1), .version = 2, .count = 1, .entries = {{OBJECT(stream), PARTS(1, 0)}}
#define T_NONE              "\xc0"
#define T_FALSE             "\xc1"
#define T_TRUE              "\xc2"
#define T_INT8              "\xc3"
#define T_INT16             "\xc4"
#define T_INT32             "\xc5"
#define T_INT64             "\xc6"
#define T_BIGINT            "\xc7"
#define T_FLOAT             "\xc8"
#define T_COMPLEX           "\xc9"
#define T_ASCII             "\xca"
#define T_UTF8              "\xcb"
#define T_WTF8              "\xcc"
#define T_BYTES             "\xcd"
#define T_BYTEARRAY         "\xce"
#define T_LIST              "\xcf"
#define T_TUPLE             "\xd0"
#define T_SET               "\xd1"
#define T_FROZENSET         "\xd2"
#define T_DICT              "\xd3"
#define T_PACKED_LIST       "\xd4"
#define T_PACKED_TUPLE      "\xd5"
#define T_RANGE             "\xd6"
#define T_SLICE             "\xd7"
#define T_CLASS             "\xd8"
#define T_OBJECT            "\xd9"
#define T_MEMBER            "\xda"
#define T_SCALAR            "\xdb"
#define T_DTYPE             "\xdc"
#define T_DEVICE            "\xdd"
#define T_SIZE              "\xde"
#define T_PART              "\xdf"
#define T_PART_BYTEARRAY    "\xe0"
#define T_LEAF              "\xe1"
#define T_NAMED             "\xe2"
#define T_AGAIN             "\xe3"
#define ONE                 "\0\0\0\0\0\0\xf0\x3f" /* 1.0 */
#define TEXT63              "An arrow: it is as long as a tag alone can tell, and no longer."
#define ONE_HASH                                       \
  DICT(1), .version = 2, .count = 2,                   \
           .entries = {{.kind = RINGCAST_ITEM_TENSOR,  \
                        .key = "t",                    \
                        .flags = RINGCAST_ITEM_SHA256, \
                        .dtype = {1, 8, 1},            \
                        .ndim = 1,                     \
                        .shape = {24},                 \
                        .strides = {1},                \
                        .data = COUNTING,              \
                        .bytes = 24,                   \
                        .hash = 0x1d64add2a6388367},   \
                       {.kind = RINGCAST_ITEM_STR, .key = "s", .data = "text", .bytes = 4}}
#define TIMES4(x)    x x x x
#define TIMES32(x)   TIMES4(TIMES4(x)) TIMES4(TIMES4(x))
#define TIMES1024(x) TIMES32(TIMES32(x))

/* clang-format off */
static const struct vector VECTORS[] = {
    {.name = "empty-dict", .about = "A dict without items: nothing but the header.", DICT(0)},
    {.name = "scalars", .about = "Entries without data. The frame ends with its keys.", DICT(0xffffffffu), .count = 6,
     .entries = {{.kind = RINGCAST_ITEM_NONE, .key = "none"},
                 {.kind = RINGCAST_ITEM_BOOL, .key = "true", .value = 1},
                 {.kind = RINGCAST_ITEM_BOOL, .key = "false"},
                 {.kind = RINGCAST_ITEM_INT, .key = "lowest", .value = INT64_MIN},
                 {.kind = RINGCAST_ITEM_INT, .key = "highest", .value = INT64_MAX},
                 {.kind = RINGCAST_ITEM_INT, .key = "", .value = -1}}},
    {.name = "floats", .about = "0.1, -0.0, infinity, a NaN whose payload is kept, the least subnormal.", DICT(7),
     .count = 5,
     .entries = {{.kind = RINGCAST_ITEM_FLOAT, .key = "a", .value = 0x3fb999999999999a},
                 {.kind = RINGCAST_ITEM_FLOAT, .key = "b", .value = INT64_MIN},
                 {.kind = RINGCAST_ITEM_FLOAT, .key = "c", .value = 0x7ff0000000000000},
                 {.kind = RINGCAST_ITEM_FLOAT, .key = "d", .value = 0x7ff8000000000123},
                 {.kind = RINGCAST_ITEM_FLOAT, .key = "e", .value = 1}}},
    {.name = "text-and-bytes", .about = "Data on 8 bytes; what is empty has offset 0; keys are UTF-8.", DICT(2),
     .count = 6,
     .entries = {{.kind = RINGCAST_ITEM_STR, .key = "clé", .data = "d\xc3\xa9j\xc3\xa0 vu", .bytes = 9},
                 {.kind = RINGCAST_ITEM_STR, .key = "empty", .data = "", .bytes = 0},
                 {.kind = RINGCAST_ITEM_BYTES, .key = "zeros", .data = "\0\0\0\0\0\0\0\0", .bytes = 8},
                 {.kind = RINGCAST_ITEM_BYTES, .key = "one", .data = "\xff", .bytes = 1,
                  .flags = RINGCAST_ITEM_READONLY},
                 {.kind = RINGCAST_ITEM_BYTES, .key = "none", .data = "", .bytes = 0},
                 {.kind = RINGCAST_ITEM_STR, .key = "鍵", .data = "\xe5\x80\xa4", .bytes = 3}}},
    {.name = "tensors", .about = "Each tensor on a line: float32, bfloat16, 0-d int64, empty, bool, complex64.",
     DICT(3), .count = 6,
     .entries = {{.kind = RINGCAST_ITEM_TENSOR, .key = "float32", .flags = RINGCAST_ITEM_TORCH, .dtype = F32, .ndim = 2,
                  .shape = {2, 3}, .strides = {3, 1}, .data = COUNTING, .bytes = 24},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "bfloat16", .dtype = {4, 16, 1}, .ndim = 1, .shape = {3},
                  .flags = RINGCAST_ITEM_TORCH | RINGCAST_ITEM_REQUIRES_GRAD | RINGCAST_ITEM_PARAMETER,
                  .strides = {1}, .data = COUNTING, .bytes = 6},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "0-d", .flags = RINGCAST_ITEM_NUMPY, .dtype = {0, 64, 1},
                  .data = COUNTING, .bytes = 8},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "empty", .flags = RINGCAST_ITEM_NUMPY, .dtype = F32, .ndim = 3,
                  .shape = {2, 0, 4}, .strides = {4, 4, 1}, .data = "", .bytes = 0},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "bool", .dtype = {6, 8, 1}, .ndim = 1, .shape = {3},
                  .strides = {1}, .data = "\1\0\1", .bytes = 3},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "complex64", .dtype = {5, 64, 1}, .ndim = 1, .shape = {2},
                  .strides = {1}, .data = COUNTING, .bytes = 16}}},
    {.name = "bits", .about = "Less than a byte each: five int4, nine fp6; and fp4 in pairs, which are whole bytes.",
     DICT(4), .count = 3,
     .entries = {{.kind = RINGCAST_ITEM_TENSOR, .key = "int4", .dtype = {0, 4, 1}, .ndim = 1, .shape = {5},
                  .strides = {1}, .data = "\x21\x43\x05", .bytes = 3},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "fp6", .dtype = {15, 6, 1}, .ndim = 2, .shape = {3, 3},
                  .strides = {3, 1}, .data = COUNTING, .bytes = 7},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "fp4x2", .dtype = {17, 4, 2}, .ndim = 1, .shape = {3},
                  .strides = {1}, .data = COUNTING, .bytes = 3}}},
    {.name = "padded", .about = "Less than a byte each, in a byte of their own: uint4 from a transposed tensor, int1.",
     DICT(4), .version = 2, .count = 2,
     .entries = {{.kind = RINGCAST_ITEM_TENSOR, .key = "uint4", .dtype = {1, 4, 1}, .ndim = 2, .shape = {3, 2},
                  .flags = RINGCAST_ITEM_TORCH | RINGCAST_ITEM_PADDED, .strides = {2, 1}, .data = "\0\3\1\4\2\5",
                  .bytes = 6, .source = COUNTING, .source_strides = {1, 3}},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "int1", .dtype = {0, 1, 1}, .ndim = 1, .shape = {3},
                  .flags = RINGCAST_ITEM_PADDED, .strides = {1}, .data = "\0\1\0", .bytes = 3}}},
    {.name = "packed", .about = "Sent from a transposed tensor and from a reversed one: in C order when it arrives.",
     DICT(5), .count = 2,
     .entries = {{.kind = RINGCAST_ITEM_TENSOR, .key = "transposed", .dtype = {1, 8, 1}, .ndim = 2, .shape = {3, 2},
                  .strides = {2, 1}, .data = "\0\3\1\4\2\5", .bytes = 6, .source = COUNTING, .source_strides = {1, 3}},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "reversed", .dtype = {1, 16, 1}, .ndim = 1, .shape = {3},
                  .strides = {1}, .data = "\4\5\2\3\0\1", .bytes = 6, .source = COUNTING + 4, .source_strides = {-1}}}},
    {.name = "many-dimensions", .about = "64 dimensions, the most there are.", VALUE(6), .count = 1,
     .entries = {{.kind = RINGCAST_ITEM_TENSOR, .dtype = {1, 8, 1}, .ndim = 64, .data = COUNTING, .bytes = 2,
                  .shape = {2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                            1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                            1, 1, 1, 1, 1},
                  .strides = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                              1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                              1, 1, 1, 1, 1, 1}}}},
    {.name = "value", .about = "No dict: entry 0 is the value, a pickle, and the others are its buffers.", VALUE(8),
     .count = 3,
     .entries = {{.kind = RINGCAST_ITEM_PICKLE, .data = "\x80\x05N.", .bytes = 4},
                 {.kind = RINGCAST_ITEM_BUFFER, .data = COUNTING, .bytes = 17},
                 {.kind = RINGCAST_ITEM_BUFFER, .data = COUNTING, .bytes = 8, .flags = RINGCAST_ITEM_READONLY}}},
    {.name = "leaves", .about = "Items that index the list in the frame's pickle, which is no item itself.", DICT(9),
     .count = 3,
     .entries = {{.kind = RINGCAST_ITEM_LEAF, .key = "first", .value = 0},
                 {.kind = RINGCAST_ITEM_LEAF, .key = "second", .value = 1},
                 {.kind = RINGCAST_ITEM_PICKLE, .data = "\x80\x05]\x94(K\x01K\x02""e.", .bytes = 10}}},
    {.name = "error", .about = "The sender could not send what was due.", VALUE(10), .count = 1,
     .entries = {{.kind = RINGCAST_ITEM_ERROR, .data = "cannot pickle it", .bytes = 16}}},
    {.name = "strided", .about = "Rows that are four elements apart: no builder makes them, readers take them.",
     DICT(1), .count = 1,
     .entries = {{.kind = RINGCAST_ITEM_TENSOR, .key = "t", .dtype = F32, .ndim = 2, .shape = {2, 2}, .strides = {4, 1},
                  .data = COUNTING, .bytes = 24}},
     PATCH(120, WORD(2), WORD(2), WORD(4), WORD(1))},
    {.name = "nested", .about = "A list of one by each tag, with its parts after it, and a leaf.", VALUE(11),
     .version = 2, .count = 6,
     .entries = {{OBJECT(T_LIST "\x27" "\x00" "\x7f" "\x82hi" T_NONE T_FALSE T_TRUE T_INT8 "\xff" T_INT16 "\x00\x01"
                         T_INT32 "\0\0\1\0" T_INT64 "\0\0\0\0\0\1\0\0" T_BIGINT "\x09\0\0\0\0\0\0\0\0\1" T_FLOAT ONE
                         T_COMPLEX ONE "\0\0\0\0\0\0\0\x80" T_ASCII "\3abc" T_UTF8 "\2\xc3\xa9" T_WTF8 "\3\xed\xa0\x80"
                         T_BYTES "\2\0\xff" T_BYTEARRAY "\1a" T_TUPLE "\1" T_NONE T_SET "\1" "\5" T_FROZENSET "\0"
                         T_DICT "\1" "\x81k" "\7" T_PACKED_LIST "\2" "\2" "\1\0\xff\xff" T_PACKED_TUPLE "\x28" "\1" ONE
                         T_RANGE "\0" "\x0a" "\2" T_SLICE T_NONE "\5" T_NONE T_CLASS "\1" "\x0b" "mod\0Point\0x"
                         T_OBJECT "\0" T_TRUE T_CLASS "\4" "\x09" "mod\0Color" T_MEMBER "\1" "\x83RED"
                         T_SCALAR "\2\x20\1\0" "\0\0\x80\x3f" T_DTYPE "\7" "float32" T_DEVICE "\6" "cuda:1"
                         T_SIZE "\2" "\2\0\0\0\0\0\0\0" "\3\0\0\0\0\0\0\0" T_PART T_PART T_PART T_PART_BYTEARRAY
                         T_LEAF "\0" T_NAMED "\2no" T_AGAIN "\0"),
                  PARTS(1, 4),
                  .meaning = "[0, 127, 'hi', null, false, true, -1, 256, 65536, 1099511627776, "
                             "{'int': '0x10000000000000000'}, {'float': '3ff0000000000000'}, "
                             "{'complex': ['3ff0000000000000', '8000000000000000']}, 'abc', 'é', '\\ud800', "
                             "{'bytes': '00ff'}, {'bytearray': '61'}, {'tuple': [null]}, {'set': [5]}, "
                             "{'frozenset': []}, {'dict': [['k', 7]]}, [1, 65535], "
                             "{'tuple': [{'float': '3ff0000000000000'}]}, {'range': [0, 10, 2]}, "
                             "{'slice': [null, 5, null]}, "
                             "{'dataclass': ['mod', 'Point'], 'fields': [['x', true]]}, "
                             "{'enum': ['mod', 'Color'], 'member': 'RED'}, "
                             "{'scalar': [2, 32, 1], 'data': '0000803f'}, {'torch.dtype': 'float32'}, "
                             "{'torch.device': 'cuda:1'}, {'torch.Size': [2, 3]}, {'part': 1}, {'part': 2}, "
                             "{'part': 3}, {'part': 4, 'bytearray': true}, {'leaf': 0}, 'no', 'no']"},
                 {.kind = RINGCAST_ITEM_TENSOR, .flags = RINGCAST_ITEM_NUMPY, .dtype = F32, .ndim = 1, .shape = {2},
                  .strides = {1}, .data = COUNTING, .bytes = 8},
                 {.kind = RINGCAST_ITEM_STR, .data = "long text", .bytes = 9},
                 {.kind = RINGCAST_ITEM_BYTES, .data = COUNTING, .bytes = 10, .flags = RINGCAST_ITEM_READONLY},
                 {.kind = RINGCAST_ITEM_BYTES, .data = COUNTING, .bytes = 11},
                 {.kind = RINGCAST_ITEM_PICKLE, .data = "\x80\x05]\x94K\x01""a.", .bytes = 8}}},
    {.name = "nested-ints", .about = "Ints at the borders of each width.", VALUE(12), .version = 2, .count = 1,
     .entries = {{OBJECT(T_TUPLE "\x10" "\0" "\x7f" T_INT8 "\x80" T_INT8 "\x7f" T_INT16 "\x80\0" T_INT16 "\0\x80"
                         T_INT16 "\xff\x7f" T_INT32 "\0\x80\0\0" T_INT32 "\0\0\0\x80" T_INT32 "\xff\xff\xff\x7f"
                         T_INT64 "\0\0\0\x80\0\0\0\0" T_INT64 "\0\0\0\0\0\0\0\x80"
                         T_INT64 "\xff\xff\xff\xff\xff\xff\xff\x7f" T_BIGINT "\x09\0\0\0\0\0\0\0\x80\0"
                         T_BIGINT "\x09\xff\xff\xff\xff\xff\xff\xff\x7f\xff" T_BIGINT "\0"),
                  PARTS(0, 0),
                  .meaning = "{'tuple': [0, 127, -128, 127, 128, -32768, 32767, 32768, -2147483648, 2147483647, "
                             "2147483648, -9223372036854775808, 9223372036854775807, {'int': '0x8000000000000000'}, "
                             "{'int': '-0x8000000000000001'}, {'int': '0x0'}]}"}}},
    {.name = "nested-text", .about = "Text of 0, 63 and 64 characters; counts of 2, 4 and 8 bytes; what JSON escapes.",
     VALUE(13), .version = 2, .count = 1,
     .entries = {{OBJECT(T_LIST "\x0a" "\x80" "\xbf" TEXT63 T_ASCII "\x40" TEXT63 "x" T_ASCII "\xfc\1\0" "2"
                         T_ASCII "\xfd\1\0\0\0" "4" T_ASCII "\xfe\1\0\0\0\0\0\0\0" "8" T_ASCII "\0"
                         "\x84\0\x1f\"\\" T_UTF8 "\4\xf0\x9f\x8e\xb5" T_WTF8 "\5" "a\xed\xbf\xbf" "b"),
                  PARTS(1, 0),
                  .meaning = "['', '" TEXT63 "', '" TEXT63 "x', '2', '4', '8', '', "
                             "'\\u0000\\u001f\\u0022\\u005c', '\xf0\x9f\x8e\xb5', 'a\\udfffb']"}}},
    {.name = "nested-again", .about = "Text that comes again, by its number: as a value, as a key, in another list.",
     VALUE(18), .version = 2, .count = 1,
     .entries = {{OBJECT(T_LIST "\4" T_NAMED "\5" "first" T_NAMED "\3" "d\xc3\xbc" T_DICT "\1" T_AGAIN "\1" T_AGAIN "\0"
                         T_LIST "\3" T_AGAIN "\0" T_NAMED "\0" T_AGAIN "\xfc\2\0"),
                  PARTS(1, 0),
                  .meaning = "['first', 'dü', {'dict': [['dü', 'first']]}, ['first', '', '']]"}}},
    {.name = "nested-packed", .about = "Packed lists of each width, and without a number.", VALUE(14), .version = 2,
     .count = 1,
     .entries = {{OBJECT(T_LIST "\x09" T_PACKED_LIST "\x01" "\2\0\xff" T_PACKED_LIST "\x02" "\1\xff\xff"
                         T_PACKED_TUPLE "\x04" "\1\xff\xff\xff\xff" T_PACKED_LIST "\x11" "\2\x80\x7f"
                         T_PACKED_LIST "\x12" "\1\0\x80" T_PACKED_LIST "\x14" "\1\0\0\0\x80"
                         T_PACKED_TUPLE "\x18" "\2" "\0\0\0\0\0\0\0\x80" "\xff\xff\xff\xff\xff\xff\xff\x7f"
                         T_PACKED_LIST "\x28" "\2" "\x23\1\0\0\0\0\xf8\x7f" "\0\0\0\0\0\0\0\x80"
                         T_PACKED_TUPLE "\x18" "\0"),
                  PARTS(1, 0),
                  .meaning = "[[0, 255], [65535], {'tuple': [4294967295]}, [-128, 127], [-32768], [-2147483648], "
                             "{'tuple': [-9223372036854775808, 9223372036854775807]}, "
                             "[{'float': '7ff8000000000123'}, {'float': '8000000000000000'}], {'tuple': []}]"}}},
    {.name = "nested-classes", .about = "Each kind of class; instances within instances; one defined where it is met.",
     VALUE(15), .version = 2, .count = 1,
     .entries = {{OBJECT(T_LIST "\5" T_CLASS "\1" "\x0c" "m\0Pair\0a\0bé" T_OBJECT "\0" T_CLASS "\2" "\x09"
                         "n.o\0S.T\0s" T_OBJECT "\1" "\1" T_CLASS "\3" "\5" "m\0N\0n" T_OBJECT "\2" "\2"
                         T_OBJECT "\0" "\3" T_OBJECT "\1" "\4" T_CLASS "\4" "\3" "m\0E" T_MEMBER "\3" "\x81" "A"
                         T_MEMBER "\3" T_UTF8 "\2\xc3\x96" T_CLASS "\1" "\7" "m\0Empty" T_OBJECT "\4"),
                  PARTS(1, 0),
                  .meaning = "[{'dataclass': ['m', 'Pair'], 'fields': "
                             "[['a', {'struct': ['n.o', 'S.T'], 'fields': [['s', 1]]}], "
                             "['bé', {'namedtuple': ['m', 'N'], 'fields': [['n', 2]]}]]}, "
                             "{'dataclass': ['m', 'Pair'], 'fields': "
                             "[['a', 3], ['bé', {'struct': ['n.o', 'S.T'], 'fields': [['s', 4]]}]]}, "
                             "{'enum': ['m', 'E'], 'member': 'A'}, {'enum': ['m', 'E'], 'member': 'Ö'}, "
                             "{'dataclass': ['m', 'Empty'], 'fields': []}]"}}},
    {.name = "nested-items", .about = "Two items of a dict, each with parts of its own; a leaf inside and one beside.",
     DICT(16), .version = 2, .count = 6,
     .entries = {{OBJECT(T_LIST "\2" T_PART T_LEAF "\1"), .key = "a", PARTS(3, 1),
                  .meaning = "[{'part': 3}, {'leaf': 1}]"},
                 {.kind = RINGCAST_ITEM_LEAF, .key = "b", .value = 0},
                 {OBJECT(T_DICT "\1" T_NONE T_PART), .key = "c", PARTS(4, 1),
                  .meaning = "{'dict': [[null, {'part': 4}]]}"},
                 {.kind = RINGCAST_ITEM_STR, .data = "one", .bytes = 3},
                 {.kind = RINGCAST_ITEM_STR, .data = "two", .bytes = 3},
                 {.kind = RINGCAST_ITEM_PICKLE, .data = "\x80\x05]\x94(K\x01K\x02""e.", .bytes = 10}}},
    {.name = "hashes", .about = "A hash of each tensor's bytes: SHA-256, XXH3, XXH3 of nothing; and a tensor without.",
     DICT(17), .version = 2, .count = 4,
     .entries = {{.kind = RINGCAST_ITEM_TENSOR, .key = "sha256", .flags = RINGCAST_ITEM_NUMPY | RINGCAST_ITEM_SHA256,
                  .dtype = F32, .ndim = 2, .shape = {2, 3}, .strides = {3, 1}, .data = COUNTING, .bytes = 24,
                  .hash = 0x1d64add2a6388367},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "xxh3", .flags = RINGCAST_ITEM_XXH3, .dtype = F32, .ndim = 2,
                  .shape = {2, 3}, .strides = {3, 1}, .data = COUNTING, .bytes = 24, .hash = 0xeb173b2aa3b5397a},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "empty", .flags = RINGCAST_ITEM_XXH3, .dtype = F32, .ndim = 1,
                  .shape = {0}, .strides = {1}, .data = "", .bytes = 0, .hash = 0x2d06800538d394c2},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "none", .dtype = F32, .data = COUNTING, .bytes = 4}}},
    {.name = "pool", .about = "Tensors in the writer's device pool: of torch, CuPy, JAX; bit on bit; with a hash.",
     DICT(19), .version = 3, .slot = 127, .epoch = 4000000000, .generation = 10000000000000000000u, .count = 6,
     .entries = {{DEVICE_TENSOR, .key = "torch", .flags = RINGCAST_ITEM_TORCH | RINGCAST_ITEM_PARAMETER |
                  RINGCAST_ITEM_REQUIRES_GRAD | RINGCAST_ITEM_CUDA, .placement = RINGCAST_PLACEMENT_POOL},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "cupy", .flags = RINGCAST_ITEM_CUPY | RINGCAST_ITEM_CUDA,
                  .dtype = {0, 8, 1}, .ndim = 3, .shape = {65536, 65536, 256}, .strides = {16777216, 256, 1},
                  .bytes = 1099511627776, .placement = RINGCAST_PLACEMENT_POOL, .offset = 256},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "jax", .flags = RINGCAST_ITEM_JAX | RINGCAST_ITEM_CUDA,
                  .dtype = {4, 16, 1}, .bytes = 2, .placement = RINGCAST_PLACEMENT_POOL, .offset = 1099511628032},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "bits", .flags = RINGCAST_ITEM_CUDA, .dtype = {0, 4, 1},
                  .ndim = 1, .shape = {5}, .strides = {1}, .bytes = 3, .placement = RINGCAST_PLACEMENT_POOL,
                  .offset = 512},
                 {DEVICE_TENSOR, .key = "hashed", .flags = RINGCAST_ITEM_CUDA | RINGCAST_ITEM_SHA256,
                  .placement = RINGCAST_PLACEMENT_POOL, .offset = 18446744073709551360u, .hash = 0x1d64add2a6388367},
                 {DEVICE_TENSOR, .key = "host", .flags = RINGCAST_ITEM_NUMPY, .data = COUNTING}}},
    {.name = "extern", .about = "Tensors in device memory that the writer has lent, and one in its pool, as parts.",
     VALUE(20), WORDS, .count = 4,
     .entries = {{OBJECT(T_LIST "\3" T_PART T_PART T_PART), PARTS(1, 3),
                  .meaning = "[{'part': 1}, {'part': 2}, {'part': 3}]"},
                 {DEVICE_TENSOR, .flags = RINGCAST_ITEM_TORCH | RINGCAST_ITEM_CUDA,
                  .placement = RINGCAST_PLACEMENT_EXTERN, .offset = 12, .lent = 1},
                 {.kind = RINGCAST_ITEM_TENSOR, .flags = RINGCAST_ITEM_CUDA | RINGCAST_ITEM_PADDED, .dtype = {1, 4, 1},
                  .ndim = 1, .shape = {5}, .strides = {1}, .bytes = 5, .placement = RINGCAST_PLACEMENT_EXTERN,
                  .offset = 3, .lent = 64},
                 {DEVICE_TENSOR, .flags = RINGCAST_ITEM_TORCH | RINGCAST_ITEM_CUDA,
                  .placement = RINGCAST_PLACEMENT_POOL, .offset = 768}}},
    {.name = "inline-cuda", .about = "Tensors of a device whose bytes are in the frame; one has none.",
     DICT(21), .version = 3, .count = 3,
     .entries = {{DEVICE_TENSOR, .key = "torch", .flags = RINGCAST_ITEM_TORCH | RINGCAST_ITEM_CUDA, .data = COUNTING},
                 {DEVICE_TENSOR, .key = "cupy", .flags = RINGCAST_ITEM_CUPY | RINGCAST_ITEM_CUDA, .data = COUNTING},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "empty", .flags = RINGCAST_ITEM_JAX | RINGCAST_ITEM_CUDA,
                  .dtype = F32, .ndim = 2, .shape = {0, 3}, .strides = {3, 1}, .data = ""}}},

    {.name = "bad-magic", .about = "Another magic.", ONE_TENSOR, .damaged = true, PATCH(HEADER(magic), 'X')},
    {.name = "bad-version", .about = "A later version.", ONE_TENSOR, .damaged = true,
     PATCH(HEADER(version), RINGCAST_FRAME_VERSION + 1)},
    {.name = "bad-root", .about = "An unknown root.", ONE_TENSOR, .damaged = true, PATCH(HEADER(root), 3)},
    {.name = "bad-length", .about = "The header names more bytes than there are.", ONE_TENSOR, .damaged = true,
     PATCH(HEADER(bytes), WORD(255))},
    {.name = "bad-count", .about = "More entries than the frame has room for.", ONE_TENSOR, .damaged = true,
     PATCH(HEADER(count), 255)},
    {.name = "bad-reserved", .about = "A tensor in the frame, with a number of lent memory.", ONE_TENSOR,
     .damaged = true, PATCH(ENTRY(0, lent), 1)},
    {.name = "bad-kind", .about = "An unknown kind.", ONE_TENSOR, .damaged = true, PATCH(ENTRY(0, kind), 13)},
    {.name = "bad-flags", .about = "An unknown flag.", ONE_TENSOR, .damaged = true, PATCH(ENTRY(0, flags) + 3, 0x80)},
    {.name = "bad-padding", .about = "The second tensor is padded too, but its elements are whole bytes.", DICT(1),
     .count = 2,
     .entries = {{.kind = RINGCAST_ITEM_TENSOR, .key = "t", .dtype = {1, 4, 1}, .ndim = 1, .shape = {3},
                  .flags = RINGCAST_ITEM_PADDED, .strides = {1}, .data = COUNTING, .bytes = 3},
                 {.kind = RINGCAST_ITEM_TENSOR, .key = "u", .dtype = {1, 8, 1}, .ndim = 1, .shape = {3}, .strides = {1},
                  .data = COUNTING, .bytes = 3}},
     .damaged = true, PATCH(ENTRY(1, flags) + 1, 1)},
    {.name = "bad-padded-version", .about = "A padded tensor in version 1, which knows of none.", DICT(1), .count = 1,
     .entries = {{.kind = RINGCAST_ITEM_TENSOR, .key = "t", .dtype = {1, 4, 1}, .ndim = 1, .shape = {3},
                  .flags = RINGCAST_ITEM_PADDED, .strides = {1}, .data = COUNTING, .bytes = 3}},
     .damaged = true, PATCH(HEADER(version), 1)},
    {.name = "bad-placement", .about = "An unknown placement.", ONE_POOL, .damaged = true,
     PATCH(ENTRY(0, placement), 3)},
    {.name = "bad-key", .about = "The key begins before the meta area.", ONE_TENSOR, .damaged = true,
     PATCH(ENTRY(0, key_offset), 48)},
    {.name = "bad-dimensions", .about = "The dimensions end after the meta area.", ONE_TENSOR, .damaged = true,
     PATCH(ENTRY(0, dims_offset), 128)},
    {.name = "bad-line", .about = "The tensor is 8 bytes off its line.", DICT(1), .count = 2,
     .entries = {{.kind = RINGCAST_ITEM_TENSOR, .key = "t", .dtype = F32, .ndim = 2, .shape = {2, 3}, .strides = {3, 1},
                  .data = COUNTING, .bytes = 24},
                 {.kind = RINGCAST_ITEM_BUFFER, .data = COUNTING, .bytes = 64}},
     .damaged = true, PATCH(ENTRY(0, offset), WORD(248))},
    {.name = "bad-data", .about = "The data ends after the frame.", ONE_TENSOR, .damaged = true,
     PATCH(ENTRY(0, offset), 240)},
    {.name = "bad-shape", .about = "A negative dimension.", ONE_TENSOR, .damaged = true,
     PATCH(120, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)},
    {.name = "bad-strides", .about = "Strides that lead out of the tensor's data.", ONE_TENSOR, .damaged = true,
     PATCH(136, WORD(4))},
    {.name = "bad-overlap", .about = "Elements share their bytes: packed, they would be longer than the data.",
     ONE_TENSOR, .damaged = true, PATCH(128, WORD(5), WORD(1))},
    {.name = "bad-object-version", .about = "A nested value in a frame of version 1.", ONE_OBJECT(T_NONE),
     .damaged = true, PATCH(HEADER(version), 1)},
    {.name = "bad-object-empty", .about = "A nested value without a byte.", ONE_OBJECT(T_NONE), .damaged = true,
     PATCH(ENTRY(0, offset), WORD(0), WORD(0))},
    {.name = "bad-token", .about = "An unknown tag.", ONE_OBJECT("\xe4"), .damaged = true},
    {.name = "bad-cut", .about = "A token is cut off.", ONE_OBJECT(T_INT32 "\0\0\0"), .damaged = true},
    {.name = "bad-count-width", .about = "A count of 16 bytes.", ONE_OBJECT(T_LIST "\xff\0\0\0\0\0\0\0\0" ONE),
     .damaged = true},
    {.name = "bad-values", .about = "A list in a list: each counts what is left, and it is not there twice.",
     ONE_OBJECT(T_LIST "\3" T_LIST "\2" T_NONE T_NONE), .damaged = true},
    {.name = "bad-trailing", .about = "Bytes after the value.", ONE_OBJECT(T_NONE T_NONE), .damaged = true},
    {.name = "bad-depth", .about = "1025 lists within each other.", ONE_OBJECT(TIMES1024(T_LIST "\1") T_LIST "\0"),
     .damaged = true},
    {.name = "bad-again", .about = "A text again that comes later.",
     ONE_OBJECT(T_TUPLE "\2" T_AGAIN "\0" T_NAMED "\1" "x"), .damaged = true},
    {.name = "bad-class", .about = "An instance of a class that comes later.",
     ONE_OBJECT(T_TUPLE "\2" T_OBJECT "\0" T_CLASS "\1" "\3" "m\0C" T_OBJECT "\0"), .damaged = true},
    {.name = "bad-class-kind", .about = "A class of an unknown kind.",
     ONE_OBJECT(T_CLASS "\5" "\3" "m\0C" T_OBJECT "\0"), .damaged = true},
    {.name = "bad-class-name", .about = "A class with a module and no name.",
     ONE_OBJECT(T_CLASS "\1" "\1" "m" T_OBJECT "\0"), .damaged = true},
    {.name = "bad-class-alone", .about = "A class, and no value after it.", ONE_OBJECT(T_CLASS "\1" "\3" "m\0C"),
     .damaged = true},
    {.name = "bad-fields", .about = "An enum with a field.",
     ONE_OBJECT(T_CLASS "\4" "\5" "m\0E\0f" T_MEMBER "\0" "\x81" "A"),
     .damaged = true},
    {.name = "bad-member", .about = "A member of a class that is no enum.",
     ONE_OBJECT(T_CLASS "\1" "\3" "m\0C" T_MEMBER "\0" "\x81" "A"), .damaged = true},
    {.name = "bad-packed", .about = "Packed numbers of 3 bytes.", ONE_OBJECT(T_PACKED_LIST "\3" "\1" "\0\0\0"),
     .damaged = true},
    {.name = "bad-scalar", .about = "A scalar of 12 bits.", ONE_OBJECT(T_SCALAR "\0\x0c\1\0" "\0\0"), .damaged = true},
    {.name = "bad-parts", .about = "More parts than the frame has entries.", ONE_OBJECT(T_PART), .damaged = true,
     PATCH(ENTRY(0, scalar), 1, 0, 0, 0, 1, 0, 0, 0)},
    {.name = "bad-parts-used", .about = "Of two parts one is used.", VALUE(1), .version = 2, .count = 3,
     .damaged = true,
     .entries = {{OBJECT(T_PART), PARTS(1, 2)},
                 {.kind = RINGCAST_ITEM_STR, .data = "one", .bytes = 3},
                 {.kind = RINGCAST_ITEM_STR, .data = "two", .bytes = 3}}},
    {.name = "bad-part-kind", .about = "A part that is no tensor, text or bytes.", VALUE(1), .version = 2, .count = 2,
     .damaged = true, .entries = {{OBJECT(T_PART), PARTS(1, 1)}, {.kind = RINGCAST_ITEM_NONE}}},
    {.name = "bad-hash", .about = "Two hashes at once.", ONE_HASH, .damaged = true,
     PATCH(ENTRY(0, flags), RINGCAST_ITEM_KEYED | RINGCAST_ITEM_SHA256 | RINGCAST_ITEM_XXH3)},
    {.name = "bad-hash-flag", .about = "A hash, and no flag says which.", ONE_HASH, .damaged = true,
     PATCH(ENTRY(0, flags), RINGCAST_ITEM_KEYED)},
    {.name = "bad-hash-version", .about = "A hash in a frame of version 1.", ONE_HASH, .damaged = true,
     PATCH(HEADER(version), 1)},
    {.name = "bad-hash-kind", .about = "A hash of a text.", ONE_HASH, .damaged = true,
     PATCH(ENTRY(1, flags), RINGCAST_ITEM_KEYED | RINGCAST_ITEM_XXH3)},
    {.name = "bad-device-version", .about = "A tensor of a device in a frame of version 2.", ONE_INLINE_CUDA,
     .damaged = true, PATCH(HEADER(version), 2)},
    {.name = "bad-device-kind", .about = "A text of a device.", ONE_POOL, .damaged = true,
     PATCH(ENTRY(1, flags), 1, RINGCAST_ITEM_CUDA >> 8)},
    {.name = "bad-library", .about = "An array of CuPy's, and of no device.", ONE_INLINE_CUDA, .damaged = true,
     PATCH(ENTRY(0, flags), 1, RINGCAST_ITEM_CUPY >> 8)},
    {.name = "bad-libraries", .about = "An array of CuPy's and of JAX's.", ONE_INLINE_CUDA, .damaged = true,
     PATCH(ENTRY(0, flags), 1, (RINGCAST_ITEM_CUDA | RINGCAST_ITEM_CUPY | RINGCAST_ITEM_JAX) >> 8)},
    {.name = "bad-words-version", .about = "A frame of version 2 that names words.", VALUE(1), WORDS, .count = 1,
     .entries = {{.kind = RINGCAST_ITEM_NONE}},
     .damaged = true, PATCH(HEADER(version), 2)},
    {.name = "bad-slot", .about = "A slot, and no epoch.", ONE_INLINE_CUDA, .damaged = true,
     PATCH(HEADER(device_slot), 5)},
    {.name = "bad-generation", .about = "An epoch, and no generation.", ONE_POOL, .damaged = true,
     PATCH(HEADER(device_generation), 0)},
    {.name = "bad-generation-alone", .about = "A generation, and no epoch.", ONE_INLINE_CUDA, .damaged = true,
     PATCH(HEADER(device_generation), 77)},
    {.name = "bad-pool-words", .about = "A tensor in the pool, and no words that say when it is there.", ONE_POOL,
     .damaged = true, PATCH(HEADER(device_slot), WORD(0), WORD(0))},
    {.name = "bad-pool-host", .about = "A tensor in the pool that is of no device.", ONE_POOL, .damaged = true,
     PATCH(ENTRY(0, flags), RINGCAST_ITEM_KEYED | RINGCAST_ITEM_TORCH, 0)},
    {.name = "bad-pool-kind", .about = "A text in the pool.", ONE_POOL, .damaged = true,
     PATCH(ENTRY(1, placement), RINGCAST_PLACEMENT_POOL)},
    {.name = "bad-pool-lent", .about = "A tensor in the pool, with a number of lent memory.", ONE_POOL,
     .damaged = true, PATCH(ENTRY(0, lent), 1)},
    {.name = "bad-pool-empty", .about = "A tensor without a byte, in the pool.", VALUE(1), WORDS, .count = 1,
     .entries = {{.kind = RINGCAST_ITEM_TENSOR, .flags = RINGCAST_ITEM_CUDA, .dtype = F32, .ndim = 1, .shape = {0},
                  .strides = {1}, .data = ""}},
     .damaged = true, PATCH(ENTRY(0, placement), RINGCAST_PLACEMENT_POOL)},
    {.name = "bad-pool-bytes", .about = "Fewer bytes in the pool than the tensor has.", ONE_POOL, .damaged = true,
     PATCH(ENTRY(0, bytes), 20)},
    {.name = "bad-pool-end", .about = "A tensor in the pool that ends at 2^64.", VALUE(1), WORDS, .count = 1,
     .entries = {{.kind = RINGCAST_ITEM_TENSOR, .flags = RINGCAST_ITEM_CUDA, .dtype = {1, 8, 1}, .ndim = 1,
                  .shape = {256}, .strides = {1}, .bytes = 256, .placement = RINGCAST_PLACEMENT_POOL}},
     .damaged = true, PATCH(ENTRY(0, offset), 0, 255, 255, 255, 255, 255, 255, 255)},
    {.name = "bad-pool-strides", .about = "A tensor in the pool that is not in C order.", ONE_POOL, .damaged = true,
     PATCH(200, WORD(1), WORD(2))},
    {.name = "bad-extern", .about = "A tensor in lent memory, and no number.", ONE_EXTERN, .damaged = true,
     PATCH(ENTRY(0, lent), 0)},
    {.name = "bad-extern-end", .about = "A tensor in lent memory that ends beyond 2^64.", ONE_EXTERN, .damaged = true,
     PATCH(ENTRY(0, offset), 248, 255, 255, 255, 255, 255, 255, 255)},
};
/* clang-format on */
#define VECTOR_COUNT ((int)(sizeof VECTORS / sizeof *VECTORS))

#endif
