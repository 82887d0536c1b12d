/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * What the files of the extension share. The extension stands on the public headers alone.
 *
 *   module.c                   the module, its state, the constants
 *   errors.c                   errno -> exception, sentences for timeouts
 *   call.c                     arguments, seconds, waiting
 *   status.c                   info, stats and peers, as Python shows them
 *
 *   handles/                   what Python's users hold
 *     writer.c                 Writer
 *     options.c                the options of Writer()
 *     send.c                   what a Writer sends: objects, bytes, errors
 *     span.c                   Span; how a reservation ends
 *     packed.c                 PackedFrame: a frame in memory of its own
 *     reader.c                 Reader
 *     receive.c                what a Reader receives
 *     turn.c                   the Reader's turn; how a frame is given back
 *     frame.c                  Frame
 *     view.c                   View: arrays that lie in the ring
 *     tap.c                    Tap
 *     asyncio.c                asyncio's side of Reader and Writer
 *   codec/                     objects and frames
 *     encode.c                 object -> parts
 *     write.c                  parts -> frame
 *     token_write.c            nested values -> tokens
 *     scalars_write.c          numbers, text and bytes -> tokens
 *     decode.c                 frame -> object
 *     decode_value.c           one entry of a frame -> value
 *     token_read.c             tokens -> nested values
 *     scalars_read.c           tokens -> numbers
 *     classes.c                classes that travel by name, and their fields
 *     torch_names.c            torch.dtype, torch.device and torch.Size
 *     inspect.c                keys, items and hashes of a frame
 *     hash.c                   hashes of what is sent
 *     path.c                   where in a value something is
 *     stack.c                  what is left of a thread's stack
 *   tensors/                   memory of tensors; declared in tensors.h
 *     tensor.c                 the dtypes that all share
 *     torch.c, numpy.c         from Python's side
 *     dlpack.c                 described and made without Python
 *     buffer_pool.c            memory of large arrays, used again
 *     view_arrays.c            arrays over the ring's own memory
 *
 * device.h has the files for tensors of a CUDA device.
 *
 * handles/ stands on codec/, codec/ on tensors/, and not the other way round. Within handles/, writer.c stands on
 * send.c and span.c, reader.c on receive.c, frame.c and turn.c.
 *
 * Every wait and every large copy is done without the GIL. A handle is for one thread at a time: `busy` is set for as
 * long as a call may let other Python code run, and a second caller gets a RuntimeError. A Frame may be released or
 * dropped by any thread.
 */
/* clang-format on */
#ifndef RC_EXTENSION_H
#define RC_EXTENSION_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include "ringcast/frame.h"
#include "ringcast/gpu.h"
#include "ringcast/ringcast.h"

/* A Python exception is set already; no errno has this value. */
#define RC_PY_RAISED INT_MIN
/* The time is up that a reader may be in the writer's way. */
#define RC_PY_TOO_SLOW (INT_MIN + 1)
/* The frame is not for this Reader: the next one is read. */
#define RC_PY_SKIPPED (INT_MIN + 2)
/* No ring has more bytes, nor more spill memory. */
#define RC_PY_MOST_BYTES (UINT64_C(1) << 40)
/* Nor has any more slots. */
#define RC_PY_MOST_READERS 1024
/* Copying fewer bytes takes less time than handing the GIL over and back. */
#define RC_PY_COPY_WITH_GIL 8192

/* ---- The module's state ----------------------------------------------------------------------------------------- */

#define RC_PY_DTYPES 41

struct rc_py_torch {
  PyObject *tensor, *parameter; /* the types; NULL until torch is seen */
  PyObject *strided, *empty, *cpu, *dtype_to_index;
  PyObject *from_dlpack;                          /* NULL: an older torch */
  PyObject *raw_stream;                           /* NULL until a stream is asked for */
  PyObject *stream;                               /* torch's object of the stream that was recorded last, ... */
  void *stream_is;                                /* ... what it is to the driver, ... */
  int32_t stream_device;                          /* ... and where; NULL: none was */
  PyObject *dtype_type, *device_type, *size_type; /* torch_names.c's; NULL until one is looked for */
  PyObject *dtypes[RC_PY_DTYPES];                 /* NULL: this torch has no such dtype */
  bool takes_no_dlpack[RC_PY_DTYPES];
  unsigned char dlpack_failures[RC_PY_DTYPES]; /* in a row, that need not last */
  const struct rc_py_exchange *exchange;       /* NULL: an older torch, or switched off */
  bool is_built_with_cuda;                     /* it said so */
  bool is_asked_first;                         /* what a tensor is, before the exchange API: it has refused one */
};

struct rc_py_numpy {
  PyObject *ndarray, *empty, *frombuffer;
  PyObject *dtypes[RC_PY_DTYPES]; /* NULL: NumPy has no such dtype */
};

/* Names that are looked up in each call, made once. */
/* clang-format off */
#define RC_PY_NAMES(X)                                                                                             \
  X(torch)                                                                                                         \
  X(numpy) X(is_cpu) X(is_nested) X(layout) X(dtype) X(device) X(shape) X(stride) X(data_ptr) X(is_neg) X(is_conj) \
      X(resolve_neg) X(resolve_conj) X(requires_grad) X(requires_grad_) X(_name_) X(_member_map_) \
      X(update) X(digest) X(release) X(is_cuda) X(get_device) X(contiguous) X(set_) X(untyped_storage)               \
      X(record_stream) X(__dlpack_device__)
/* clang-format on */

struct rc_py_names {
#define X(name) PyObject *name;
  RC_PY_NAMES(X)
#undef X
};

/* Short text that is likely to come again (keys of dicts, ids of requests), by a hash: see rc_py_key. */
#define RC_PY_KEYS_BITS 11
#define RC_PY_KEYS      (1 << RC_PY_KEYS_BITS)
#define RC_PY_KEY_MOST  64

/* A str that the stream has under a number; numbers go on from stream to stream, so an old entry shows. */
struct rc_py_text {
  PyObject *text; /* not held: whether it is still the same, its bytes in the stream say */
  uint32_t number;
  uint32_t at; /* in the stream, behind the tag */
};
#define RC_PY_TEXTS 1024
struct rc_py_texts {
  uint32_t next; /* number */
  struct rc_py_text table[RC_PY_TEXTS];
};

/* Memory of the encoder, kept from one frame to the next. */
struct rc_py_part;
struct rc_py_spare {
  struct rc_py_texts *texts;
  struct rc_py_part *parts;
  size_t part_room;
  uint8_t *stream;
  size_t stream_room;
};

struct rc_py_state {
  PyTypeObject *writer_type, *reader_type, *tap_type, *span_type, *frame_type, *packed_type, *memory_type, *view_type,
      *lent_type;
  PyObject *error, *error_by_errno, *writer_gone;
  PyObject *reader_status, *stats, *info, *lost, *tapped, *recycling; /* of ringcast._status */
  PyObject *dumps, *loads, *refuse_value, *refuse_frame;              /* of ringcast._pickling */
  PyObject *describe_class, *find_class;                              /* of ringcast._classes */
  PyObject *classes;                                                  /* that were sent: the cache of classes.c */
  PyObject *unpack_classes;                                           /* that came by unpack() */
  PyObject *no_arguments;                                             /* () */
  PyObject *sha256;                                                   /* of hashlib; NULL until it is needed */
  PyObject *keys[RC_PY_KEYS];
  uint64_t serial;   /* of the last stream that was written */
  uint64_t ran_code; /* how often decoding ran code that the user may have written */
  struct rc_py_spare spare;
  struct rc_py_names names;
  struct rc_py_torch torch;
  struct rc_py_numpy numpy;
  PyObject *nothing, *turn;        /* asyncio.c */
  PyObject *arecv, *anext, *asend; /* of ringcast._asyncio; NULL until asked for */
  PyTypeObject *device_tensor_type;
  PyObject *gpu_info, *gpu_state; /* of ringcast._status */
  PyObject *device_helpers;       /* the module ringcast._device; NULL until it is needed */
  bool device_is_ready;           /* there is a driver with a device: it was asked */
  bool recycles;                  /* it is counted among the users of the pool: buffer_pool.c */
};

/* ---- Objects ---------------------------------------------------------------------------------------------------- */

/* A reservation that Python may look at. A Span holds the generation at which it was made: another one, or `open`
 * false, and it is of the past. */
struct rc_py_lease {
  bool open;
  bool doomed; /* to be given back as soon as the last memoryview goes */
  bool moving; /* it grows at this moment */
  uint64_t generation;
  Py_ssize_t exports; /* memoryviews and other buffers in use */
};

/* Where tensors arrive. */
struct rc_py_map {
  enum { RC_PY_MAP_AS_SENT, RC_PY_MAP_CPU, RC_PY_MAP_CUDA } to;
  int32_t device; /* -1: the current one */
};

struct rc_py_place;

struct rc_py_writer {
  PyObject_HEAD ringcast_writer *writer; /* NULL: closed */
  struct ringcast_info info;
  PyObject *handle;
  pid_t pid; /* of the process that made it */
  bool busy, allow_pickle;
  int64_t fail_ns; /* how long a reader may be in the way before calls fail; 0: for ever, or it is evicted */
  struct rc_py_lease lease;
  struct ringcast_span span;
  PyObject *watch; /* as below, of ringcast_writer_room_fd */
  unsigned spent;
  bool offering;              /* the call at work is _offer() */
  ringcast_gpu_writer *gpu;   /* NULL until a tensor of a device was sent; of ... */
  int32_t gpu_device;         /* ... this one */
  int gpu_late;               /* a failure of the last frame that came to light when it had been sent; 0: none */
  uint64_t gpu_pool_bytes;    /* as ringcast_gpu_writer_options.pool_bytes */
  struct rc_py_place *places; /* empty.c: memory in the pool, of tensors that live */
};

#define RC_PY_MOST_LEASES 64

struct rc_py_hold;

struct rc_py_reader {
  PyObject_HEAD ringcast_reader *reader; /* NULL: closed */
  struct ringcast_info info;
  PyObject *handle;
  pid_t pid;
  bool busy, allow_pickle;
  PyObject *classes;       /* that came: the cache of classes.c */
  Py_ssize_t exports;      /* buffers in use, of all Frames */
  struct rc_py_hold *hold; /* what arrays of views hold; NULL: there was no view yet */
  /* Frames that were released or dropped while a call was at work: turn.c. */
  uint32_t dropped_count;
  struct ringcast_frame dropped[RC_PY_MOST_LEASES];
  PyObject *watch;  /* the descriptor in an event loop (ringcast._asyncio); NULL or None: it never was in one */
  unsigned spent;   /* on tasks that did not have to wait, since one had */
  bool has_ended;   /* the ring has said that the writer is gone and everything was received */
  bool retains;     /* asked for: see receive.c, as for ... */
  bool retain_next; /* ... this */
  /* A frame that a device could not copy when it was received: still held, and the next one. */
  bool has_stash;
  struct ringcast_frame stash;
  struct rc_py_gpu_reader *gpu; /* NULL until a tensor of a device came */
  struct rc_py_map map;
  struct rc_py_warming *warming; /* NULL until a wait has spun for a message that was due: warm.c */
};

extern PyType_Spec rc_py_writer_spec, rc_py_reader_spec, rc_py_tap_spec, rc_py_span_spec, rc_py_frame_spec,
    rc_py_packed_spec, rc_py_memory_spec, rc_py_view_spec, rc_py_lent_spec;

static inline PyObject *rc_py_ref(PyObject *object) {
  Py_XINCREF(object);
  return object;
}

/* None of the types can be subclassed, so an instance's type is the one that the module made. */
static inline struct rc_py_state *rc_py_state_of(void *self) {
  return PyType_GetModuleState(Py_TYPE((PyObject *)self));
}

/* ---- errors.c --------------------------------------------------------------------------------------------------- */

/* A new reference to module.name, or NULL. */
PyObject *rc_py_import(const char *module_name, const char *name);
int rc_py_errors_init(struct rc_py_state *state);
/* Raises what the failed call's `rc` stands for, with ringcast_last_error() as its text. Always NULL. */
PyObject *rc_py_raise(struct rc_py_state *state, int rc);
/* The same, of a call that wanted a frame of `bytes`: FrameTooLarge then says how much spill memory would do. */
PyObject *rc_py_raise_of_frame(struct rc_py_state *state, int rc, const struct ringcast_info *info, uint64_t bytes);
/* The same, of attaching to `handle`, whose UTF-8 is `text`. */
PyObject *rc_py_raise_of_attach(struct rc_py_state *state, int rc, PyObject *handle, const char *text);
/* Raises the ringcast.Error of that errno. Always NULL. */
PyObject *rc_py_raise_text(struct rc_py_state *state, int errnum, const char *format, ...);
/* Raises the ProtocolError of a frame that makes no sense. Always NULL. */
PyObject *rc_py_raise_damaged(struct rc_py_state *state, const char *what);
/* Turns a ValueError, TypeError, OverflowError or plain RuntimeError that a damaged frame led to into a ProtocolError,
 * with the original as its __cause__. */
void rc_py_protocol_from_current(struct rc_py_state *state, const char *what);
PyObject *rc_py_raise_exported(Py_ssize_t exports, const char *verb, const char *what);

/* ---- call.c ----------------------------------------------------------------------------------------------------- */

/* Sorts a vectorcall's arguments by `names` (NULL at the end) into `out`, which starts as NULLs. The first `positional`
 * may come without their name, the first `required` must be there. */
bool rc_py_arguments(const char *function, const char *const *names, Py_ssize_t positional, Py_ssize_t required,
                     PyObject *const *arguments, Py_ssize_t count, PyObject *keywords, PyObject **out);
/* None -> RINGCAST_FOREVER; seconds -> nanoseconds. */
bool rc_py_timeout(PyObject *object, int64_t *out);
/* None -> 0 (default); 0 -> -1 (never); seconds -> nanoseconds. */
bool rc_py_spin(PyObject *object, int64_t *out);
bool rc_py_wait_mode(const char *name, uint32_t *out);
/* NULL or None -> 0 (no limit); seconds, more than 0 -> nanoseconds. */
bool rc_py_slow(PyObject *object, int64_t *out);
/* A bool; NULL or None: what RINGCAST_ALLOW_PICKLE says, else true. */
bool rc_py_allow_pickle(PyObject *object, bool *out);
/* An int from `low` to `high`. */
bool rc_py_integer(const char *name, PyObject *object, uint64_t low, uint64_t high, uint64_t *out);

/* Tries once with the GIL, then waits without it in slices, so that Ctrl-C is seen whichever thread it came to.
 * Returns what `attempt` returned, -EAGAIN or -ETIMEDOUT when the time is up or the attempt gave
 * RC_PY_TOO_SLOW, or RC_PY_RAISED. */
typedef int (*rc_py_attempt)(void *call, int64_t timeout_ns, bool has_gil);
int rc_py_wait(rc_py_attempt attempt, void *call, int64_t timeout_ns);
/* The same, one of several waits that share a time: `deadline` is 0 until the first of them has to wait. `between` is
 * called with the GIL before each slice; it raises nothing. NULL: nothing is. */
typedef void (*rc_py_between)(void *call);
int rc_py_wait_until(rc_py_attempt attempt, rc_py_between between, void *call, int64_t timeout_ns, int64_t *deadline);
/* Of CLOCK_MONOTONIC. */
int64_t rc_py_now_ns(void);

/* Raises RuntimeError if another call is at work on the handle. A child made by fork meanwhile is let through, for the
 * library to refuse it. */
bool rc_py_enter(bool *busy, pid_t pid, const char *type);
/* Raises ForkedError if `pid` is not this process. */
bool rc_py_check_process(struct rc_py_state *state, pid_t pid);
/* The UTF-8 of a handle. Raises TypeError if it is no str, and says which str was meant. */
bool rc_py_handle_text(PyTypeObject *type, PyObject *handle, const char **out);
/* The arguments `n`, from 0 to `most`, and `timeout`. */
bool rc_py_amount_arguments(const char *function, PyObject *const *args, Py_ssize_t count, PyObject *keywords,
                            uint64_t most, uint64_t *n, int64_t *timeout_ns);
/* The only argument, `timeout`. */
bool rc_py_timeout_argument(const char *function, PyObject *const *args, Py_ssize_t count, PyObject *keywords,
                            int64_t *out);

/* 1: a str's UTF-8, which the str holds; 0: it has none, for it holds lone surrogates; -1: raised. */
static inline int rc_py_utf8(PyObject *text, const char **out, Py_ssize_t *bytes) {
  if (PyUnicode_IS_COMPACT_ASCII(text)) {
    *out = PyUnicode_DATA(text);
    *bytes = PyUnicode_GET_LENGTH(text);
    return 1;
  }
  *out = PyUnicode_AsUTF8AndSize(text, bytes);
  if (*out) return 1;
  if (!PyErr_ExceptionMatches(PyExc_UnicodeError)) return -1;
  PyErr_Clear();
  return 0;
}

/* Whether the answer to a question is yes: 1, 0, or -1, also of NULL (raised). Takes it over. */
static inline int rc_py_is_yes(PyObject *answer) {
  int yes = answer ? PyObject_IsTrue(answer) : -1;
  Py_XDECREF(answer);
  return yes;
}

/* memcpy, without the GIL if there is much to copy. */
void rc_py_copy(void *to, const void *from, size_t bytes);

/* ---- torch_names.c ---------------------------------------------------------------------------------------------- */

/* A torch.dtype, torch.device or torch.Size, as a token: what it counts, and its bytes, which `keep` holds. */
struct rc_py_named {
  uint8_t tag;
  size_t count, bytes;
  const void *data;
  PyObject *keep;
};
/* 1, 0: it is none of them, -1. */
int rc_py_torch_name(struct rc_py_state *state, PyObject *value, struct rc_py_named *out);
/* From the token's bytes. NULL: raised. */
PyObject *rc_py_torch_dtype(struct rc_py_state *state, const void *name, size_t bytes);
PyObject *rc_py_torch_device(struct rc_py_state *state, const void *name, size_t bytes);
PyObject *rc_py_torch_size(struct rc_py_state *state, PyObject *tuple);

/* ---- stack.c ---------------------------------------------------------------------------------------------------- */

/* So deep a nested value is walked without a look at the stack. */
#define RC_PY_DEPTH_UNSEEN 64
/* Whether this thread's stack has room to go one level deeper. `floor`: what the walk keeps of it; 0 at first. */
bool rc_py_stack_has_room(uintptr_t *floor);

/* ---- hash.c ----------------------------------------------------------------------------------------------------- */

/* None or NULL -> 0; "sha256", "xxh3" -> the flag of an entry. False: raised. */
bool rc_py_hash_argument(struct rc_py_state *state, PyObject *object, uint32_t *out);
/* Packs the tensor to `to` and gives the hash of what is there. 0, -errno, or RC_PY_RAISED. */
int rc_py_hash_pack(struct rc_py_state *state, const struct ringcast_tensor *tensor, uint64_t bytes, void *to,
                    uint32_t which, uint64_t *out);
/* Raises that a PackedFrame has the hashes that it was made with. Always NULL. */
PyObject *rc_py_hash_of_packed(void);

/* ---- packed.c --------------------------------------------------------------------------------------------------- */

struct rc_py_packed {
  PyObject_HEAD void *data;
  size_t bytes;
  struct rc_py_block *block; /* what `data` lies in; NULL: `memory` */
  void *memory;
  bool pickled; /* a part of it */
};
/* Raises PickleRefused of one that is `pickled`. Always NULL. */
PyObject *rc_py_packed_refuse(struct rc_py_state *state, const struct rc_py_packed *packed);
PyObject *rc_py_pack(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *keywords);
PyObject *rc_py_unpack(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *keywords);

/* ---- status.c --------------------------------------------------------------------------------------------------- */

/* "unknown" for a number of a later release. */
const char *rc_py_memory_name(uint32_t memory);

PyObject *rc_py_stats(struct rc_py_state *state, const struct ringcast_stats *stats);
PyObject *rc_py_info(struct rc_py_state *state, const struct ringcast_info *info);
PyObject *rc_py_peer(struct rc_py_state *state, const struct ringcast_peer *peer);
/* Room for the peers of a ring, to be freed by PyMem_Free; NULL: out of memory. */
struct ringcast_peer *rc_py_new_peers(uint32_t count);
PyObject *rc_py_peers(struct rc_py_state *state, const struct ringcast_peer *peers, int count);

/* ---- send.c ----------------------------------------------------------------------------------------------------- */

struct rc_py_reservation {
  const struct rc_py_writer *writer;
  size_t bytes;
  struct ringcast_span span;
};
int rc_py_try_reserve(void *reservation, int64_t timeout_ns, bool has_gil); /* an rc_py_attempt */
/* What the library gave to an attempt; its -ETIMEDOUT means RC_PY_TOO_SLOW or that the attempt's own time is up. */
int rc_py_told_apart(const struct rc_py_writer *self, int rc);

PyObject *rc_py_writer_send(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords);
PyObject *rc_py_writer_send_bytes(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords);
PyObject *rc_py_writer_send_error(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords);

/* ---- asyncio.c -------------------------------------------------------------------------------------------------- */

/* After so many frames in a row that a task had not to wait for, others get their turn: a turn of a loop costs as much
 * as receiving a few. Large frames count for more, as it is time that matters. */
#define RC_PY_MOST_SPENT 64
/* In place of a result of _take() and _offer(): state->turn if the turn is another's, NULL if not; no exception. */
PyObject *rc_py_pass_turn(struct rc_py_state *state, unsigned *spent);
int rc_py_loop_init(struct rc_py_state *state, PyObject *module);
/* The descriptor is about to be closed: takes it out of its loop. Keeps an exception that is set. */
void rc_py_watch_close(PyObject **watch, pid_t pid);
/* After each call that may have made the descriptor wait: -ENOBUFS says that it is gone, and who waits asks anew. */
void rc_py_watch_after(PyObject *watch, pid_t pid, int rc);

PyObject *rc_py_reader_arecv(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords);
PyObject *rc_py_reader_arecv_tagged(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords);
PyObject *rc_py_reader_anext(PyObject *self);
PyObject *rc_py_writer_asend(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords);
PyObject *rc_py_writer_room_fileno(PyObject *self, PyObject *unused);
/* _offer(obj, tag, hash): send(obj, 0, tag=tag, hash=hash), but for state->nothing if there is no room. */
PyObject *rc_py_writer_offer(PyObject *self, PyObject *const *args, Py_ssize_t count);

/* ---- view.c ----------------------------------------------------------------------------------------------------- */

/* What `frame` holds, its arrays where they lie: a View, which has a reference to the Frame. NULL: raised. */
PyObject *rc_py_view_new(struct rc_py_reader *reader, PyObject *frame);
/* Closes the Reader: it leaves the ring, and its memory is unmapped when no array lies there any more; without the GIL
 * if so asked, as it may take long. */
void rc_py_reader_shut(struct rc_py_reader *self, bool lets_others_run);

/* ---- options.c -------------------------------------------------------------------------------------------------- */

/* Of Writer()'s arguments. False: raised. */
bool rc_py_writer_options(PyObject *args, PyObject *keywords, struct ringcast_writer_options *out, bool *allow_pickle,
                          uint64_t *gpu_pool_bytes);

/* ---- span.c ----------------------------------------------------------------------------------------------------- */

/* Raises ValueError if it is closed, RuntimeError if a call is at work on it. */
bool rc_py_writer_enter(struct rc_py_writer *self);
static inline void rc_py_writer_leave(struct rc_py_writer *self) { self->busy = false; }
/* True if the open reservation, if any, may end now. */
bool rc_py_writer_may_end(const struct rc_py_writer *self, const char *verb);
/* `n` and `kind` may be NULL. */
PyObject *rc_py_writer_commit(struct rc_py_writer *self, PyObject *n, PyObject *kind);
PyObject *rc_py_writer_abort(struct rc_py_writer *self);
PyObject *rc_py_span_new(struct rc_py_writer *writer);

/* ---- turn.c, frame.c -------------------------------------------------------------------------------------------- */

bool rc_py_reader_enter(struct rc_py_reader *self);
void rc_py_reader_give_back_dropped(struct rc_py_reader *self);
static inline void rc_py_reader_leave(struct rc_py_reader *self) {
  if (self->dropped_count > 0) rc_py_reader_give_back_dropped(self);
  self->busy = false;
}
/* Raises what `rc` stands for if it is negative, and leaves. False: raised. */
bool rc_py_reader_finish(struct rc_py_reader *self, int rc);
/* Leaves the frame to the call that is at work on the Reader. False: none is. */
bool rc_py_reader_defer(struct rc_py_reader *self, const struct ringcast_frame *frame);
/* Keeps the frame as the next one, if all that is raised is that a device could not copy it now: Ctrl-C has ended the
 * copy, or the device's part of the work has failed (`device_failed`) for a stream captures a graph. */
bool rc_py_reader_stash(struct rc_py_reader *self, const struct ringcast_frame *frame, bool device_failed);
/* Gives the frame back, whatever became of its contents; an exception that is set already stays, but Evicted takes the
 * place of any other than KeyboardInterrupt and the like: it may come of what was overwritten. */
bool rc_py_reader_give_back(struct rc_py_reader *self, const struct ringcast_frame *frame);
PyObject *rc_py_frame_new(struct rc_py_reader *reader, const struct ringcast_frame *frame);
/* Gives it back where an exception is set, as above, unless that was done. */
void rc_py_frame_give_up(PyObject *frame);

#endif
