/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ringcast for C++17, header-only: the C API of ringcast.h, with handles and frames that end with
 * their scope.
 *
 *     ringcast::writer writer;             ringcast::reader reader(handle);
 *     writer.wait_readers(1, 10s);         for (auto &frame : reader) use(frame.text());
 *     writer.send("hello");
 *
 * Errors. A call that fails throws ringcast::error: code() is the errno, and what() has the text of
 * ringcast_last_error(). The try_ calls are noexcept and return what the C function returns: 0, or
 * a negative errno. Built without exceptions (-fno-exceptions), a call that would throw prints the
 * text and aborts; use the try_ calls.
 *
 * Timeouts are durations of std::chrono: 0 tries once, `forever` waits without limit.
 *
 * Signals. After a signal handler has run, a wait goes on for the rest of its time. The try_ calls
 * return -EINTR.
 *
 * Ownership. The classes can be moved, not copied. A reservation or a frame must end before its
 * writer or reader does. A moved-from object can only be assigned to or destroyed.
 *
 * Threads and fork: as in ringcast.h.
 *
 * The rest of the API takes the handles that get() returns:
 *
 *     auto info = ringcast::sized<ringcast_info>();
 *     ringcast::check(ringcast_writer_info(writer.get(), &info));
 */
#ifndef RINGCAST_RINGCAST_HPP
#define RINGCAST_RINGCAST_HPP

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>

#include "ringcast/frame.h"
#include "ringcast/inspect.h"
#include "ringcast/ringcast.h"

namespace ringcast {

using nanoseconds = std::chrono::nanoseconds;
inline constexpr nanoseconds forever{RINGCAST_FOREVER};

class error : public std::system_error {
public:
  error(int code, const char *text) : std::system_error(code, std::generic_category(), text) {}
};

[[noreturn, gnu::cold, gnu::noinline]] inline void fail(int result,
                                                        const char *text = ringcast_last_error()) {
#if defined(__cpp_exceptions)
  throw error(-result, text);
#else
  std::fprintf(stderr, "ringcast: %s (errno %d)\n", text, -result);
  std::abort();
#endif
}

/* Throws if `result`, of a C function of ringcast, is an error; else returns it. */
inline int check(int result) {
  if (__builtin_expect(result < 0, 0)) fail(result);
  return result;
}

/* The rest of a wait with a time limit, for `undisturbed`: the first try found that there is
 * something to wait for. */
template <class F> [[gnu::noinline]] int wait_until_over(nanoseconds timeout, F &call) {
  const auto start = std::chrono::steady_clock::now();
  int result = call(timeout.count());
  while (result == -EINTR) {
    const nanoseconds left = timeout - (std::chrono::steady_clock::now() - start);
    result = call(left.count() > 0 ? left.count() : 1); /* 0 would be a try, and -EAGAIN */
  }
  return result;
}

/* Makes a call that may wait, and goes on with the wait when a signal handler has run. A call that
 * need not wait looks at no clock. */
template <class F> int undisturbed(nanoseconds timeout, F call) {
  const bool is_limited = timeout.count() > 0 && timeout != forever;
  int result = call(is_limited ? 0 : timeout.count());
  while (result == -EINTR) result = call(timeout.count());
  return is_limited && result == -EAGAIN ? wait_until_over(timeout, call) : result;
}

/* A struct of the C API with its `size` set and the rest zero: options with their defaults, or info
 * to be filled. */
template <class T> T sized() noexcept {
  T value{};
  value.size = sizeof value;
  return value;
}

/* `size` elements from `data` on; std::span (C++20) can be made of it. */
template <class T> class span {
public:
  constexpr span() noexcept = default;
  constexpr span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
  constexpr T *data() const noexcept { return data_; }
  constexpr std::size_t size() const noexcept { return size_; }
  constexpr T *begin() const noexcept { return data_; }
  constexpr T *end() const noexcept { return data_ + size_; }
  constexpr T &operator[](std::size_t index) const noexcept { return data_[index]; }

private:
  T *data_ = nullptr;
  std::size_t size_ = 0;
};

/* How std::unique_ptr ends what it owns: also std::unique_ptr<ringcast_tap,
 * ringcast::closer<ringcast_tap_close>>. */
template <auto close> struct closer {
  template <class T> void operator()(T *handle) const noexcept { close(handle); }
};
struct releaser {
  ringcast_frame frame;
  int operator()(ringcast_reader *reader) const noexcept {
    /* The object's own address stays here: its fields can live in registers. */
    ringcast_frame given = frame;
    return ringcast_reader_release(reader, &given);
  }
};

/* ---- Writer ---------------------------------------------------------------------------------- */

/* Memory leased to the writer. Write into it and commit; without a commit the end of the scope
 * aborts. */
class reservation {
public:
  reservation() noexcept = default;
  void *data() const noexcept { return span_.data; } /* 16 bytes into a 64-byte line */
  std::size_t size() const noexcept { return span_.bytes; }
  span<std::byte> bytes() const noexcept {
    return {static_cast<std::byte *>(span_.data), span_.bytes};
  }

  void grow(std::size_t bytes, nanoseconds timeout = forever) {
    done(undisturbed(timeout, [&](std::int64_t ns) { return try_grow(bytes, nanoseconds(ns)); }));
  }
  int try_grow(std::size_t bytes, nanoseconds timeout = {}) noexcept {
    return open_ ? ringcast_writer_grow(open_.get(), bytes, timeout.count(), &span_) : -EINVAL;
  }
  void commit(std::size_t bytes, std::uint16_t kind = RINGCAST_KIND_BYTES) {
    done(try_commit(bytes, kind));
  }
  int try_commit(std::size_t bytes, std::uint16_t kind = RINGCAST_KIND_BYTES) noexcept {
    int result = open_ ? ringcast_writer_commit(open_.get(), bytes, kind) : -EINVAL;
    if (result >= 0) (void)open_.release();
    return result;
  }
  void abort() noexcept { open_.reset(); }

private:
  friend class writer;
  reservation(ringcast_writer *writer, const ringcast_span &got) noexcept
      : open_(writer), span_(got) {}
  void done(int result) {
    if (result < 0) fail(result, open_ ? ringcast_last_error() : "nothing is reserved");
  }
  using opened = std::unique_ptr<ringcast_writer, closer<ringcast_writer_abort>>;
  opened open_; /* null: nothing is reserved */
  ringcast_span span_{};
};

class writer {
public:
  explicit writer(const ringcast_writer_options &options = sized<ringcast_writer_options>()) {
    ringcast_writer *made;
    check(ringcast_writer_create_ex(&options, &made));
    writer_.reset(made);
  }
  ringcast_writer *get() const noexcept { return writer_.get(); }
  const char *handle() const noexcept { return ringcast_writer_handle(get()); }
  void close() noexcept { writer_.reset(); } /* as the end of the scope does */
  int wait_readers(std::uint32_t count, nanoseconds timeout = forever) {
    const auto wait = [&](std::int64_t ns) {
      return ringcast_writer_wait_readers(get(), count, ns);
    };
    return check(undisturbed(timeout, wait));
  }
  reservation reserve(std::size_t bytes, nanoseconds timeout = forever) {
    ringcast_span got;
    const auto reserve = [&](std::int64_t ns) {
      return ringcast_writer_reserve(get(), bytes, ns, &got);
    };
    check(undisturbed(timeout, reserve));
    return {get(), got};
  }
  /* Aborts the reservation that `out` holds, if any, and makes the new. */
  int try_reserve(std::size_t bytes, reservation &out, nanoseconds timeout = {}) noexcept {
    out.abort();
    ringcast_span got;
    int result = ringcast_writer_reserve(get(), bytes, timeout.count(), &got);
    if (result >= 0) out = {get(), got};
    return result;
  }
  void send(const void *data, std::size_t bytes, nanoseconds timeout = forever,
            std::uint16_t kind = RINGCAST_KIND_BYTES) {
    const auto send = [&](std::int64_t ns) { return try_send(data, bytes, nanoseconds(ns), kind); };
    check(undisturbed(timeout, send));
  }
  void send(std::string_view text, nanoseconds timeout = forever) {
    send(text.data(), text.size(), timeout);
  }
  int try_send(const void *data, std::size_t bytes, nanoseconds timeout = {},
               std::uint16_t kind = RINGCAST_KIND_BYTES) noexcept {
    return ringcast_writer_send(get(), data, bytes, kind, timeout.count());
  }

private:
  std::unique_ptr<ringcast_writer, closer<ringcast_writer_close>> writer_;
};

/* ---- Reader ---------------------------------------------------------------------------------- */

/* A frame leased to a reader: read in place, until release() or the end of the scope, which can't
 * report an eviction (ESTALE: the frame may be overwritten). If the writer may evict, call
 * release() before the results count. */
class frame {
public:
  frame() noexcept = default;
  const void *data() const noexcept { return get().data; } /* 16 bytes into a 64-byte line */
  std::size_t size() const noexcept { return get().bytes; }
  span<const std::byte> bytes() const noexcept {
    return {static_cast<const std::byte *>(data()), size()};
  }
  std::string_view text() const noexcept { return {static_cast<const char *>(data()), size()}; }
  std::uint16_t kind() const noexcept { return get().kind; }
  const ringcast_frame &get() const noexcept { return held_.get_deleter().frame; }

  void release() { check(try_release()); }
  int try_release() noexcept { return held_ ? held_.get_deleter()(held_.release()) : 0; }

private:
  friend class reader;
  frame(ringcast_reader *reader, const ringcast_frame &got) noexcept : held_(reader, {got}) {}
  std::unique_ptr<ringcast_reader, releaser> held_; /* null: no frame is held */
};

class reader {
public:
  explicit reader(const std::string &handle,
                  const ringcast_reader_options &options = sized<ringcast_reader_options>()) {
    ringcast_reader *made;
    check(ringcast_reader_attach_ex(handle.c_str(), &options, &made));
    reader_.reset(made);
  }
  ringcast_reader *get() const noexcept { return reader_.get(); }

  frame next(nanoseconds timeout = forever) {
    ringcast_frame got;
    check(undisturbed(timeout,
                      [&](std::int64_t ns) { return ringcast_reader_next(get(), ns, &got); }));
    return {get(), got};
  }
  /* Releases the frame that `out` holds, if any, and leases the next. */
  int try_next(frame &out, nanoseconds timeout = {}) noexcept {
    int result = out.try_release();
    ringcast_frame got;
    if (result >= 0) result = ringcast_reader_next(get(), timeout.count(), &got);
    if (result >= 0) out = {get(), got};
    return result;
  }

  /* for (auto &frame : reader): each frame, released before the next is leased, until the writer is
   * gone. */
  class iterator {
  public:
    explicit iterator(reader *from) : from_(from) { ++*this; }
    frame &operator*() noexcept { return frame_; }
    iterator &operator++() {
      int result = from_->try_next(frame_, forever);
      while (result == -EINTR) result = from_->try_next(frame_, forever);
      if (result != -EPIPE) check(result);
      ended_ = result < 0;
      return *this;
    }
    bool operator!=(std::nullptr_t) const noexcept { return !ended_; }

  private:
    reader *from_;
    frame frame_;
    bool ended_ = false;
  };
  iterator begin() { return iterator(this); }
  std::nullptr_t end() const noexcept { return nullptr; }

private:
  std::unique_ptr<ringcast_reader, closer<ringcast_reader_close>> reader_;
};

/* The handle of the one ring that `name` names (ringcast_find). */
inline std::string find(const std::string &name) {
  char handle[RINGCAST_HANDLE_BYTES];
  check(ringcast_find(name.c_str(), handle));
  return handle;
}

/* ---- Tensor dicts (frame.h) ------------------------------------------------------------------ */

template <class T> constexpr ringcast_dtype dtype_of() noexcept {
  static_assert(std::is_arithmetic_v<T>, "other element types: fill in a ringcast_dtype");
  constexpr int code = std::is_same_v<T, bool>       ? 6
                       : std::is_floating_point_v<T> ? 2
                       : std::is_unsigned_v<T>       ? 1
                                                     : 0;
  return {code, sizeof(T) * 8, 1};
}

/* One entry: the fields of ringcast_item, whose pointers lead into the frame. */
struct item : ringcast_item {
  std::string_view text() const noexcept { return {static_cast<const char *>(data), bytes}; }
  span<const std::int64_t> dims() const noexcept { return {shape, static_cast<std::size_t>(ndim)}; }
  template <class T> bool is() const noexcept {
    constexpr ringcast_dtype wanted = dtype_of<T>();
    return kind == RINGCAST_ITEM_TENSOR && placement == RINGCAST_PLACEMENT_INLINE &&
           dtype.code == wanted.code && dtype.bits == wanted.bits && dtype.lanes == 1;
  }
  /* The elements, where they lie in the frame. Throws (EINVAL) unless the entry is a tensor of T in
   * C order. */
  template <class T> span<const T> values() const {
    std::int64_t count = 1;
    bool fits = is<T>(), in_order = true; /* without elements, strides have no meaning */
    for (int axis = fits ? ndim : 0; axis-- > 0; count *= shape[axis])
      in_order = in_order && (strides[axis] == count || shape[axis] <= 1);
    if (!fits || (count != 0 && !in_order))
      fail(-EINVAL, "no tensor of these elements, on the host and in C order");
    return {static_cast<const T *>(data), static_cast<std::size_t>(count)};
  }
};

/* The entries of a frame of RINGCAST_KIND_TENSORS, to be read while the frame, a variable, is
 * held. */
class items {
public:
  explicit items(const frame &&) = delete;
  explicit items(const frame &from) {
    if (from.kind() != RINGCAST_KIND_TENSORS)
      fail(-EPROTO, "the frame is of another kind than RINGCAST_KIND_TENSORS");
    checked(ringcast_frame_open(&reader_, from.data(), from.size()));
  }
  std::size_t size() const noexcept { return reader_.count; }
  item operator[](std::uint32_t index) const {
    item out;
    checked(ringcast_frame_item(&reader_, index, &out));
    return out;
  }
  item at(std::string_view key) const {
    item out;
    checked(ringcast_frame_find(&reader_, key.data(), key.size(), &out));
    return out;
  }

private:
  static void checked(int result) {
    if (result < 0)
      fail(result,
           result == -ENOENT ? "the frame has no such entry" : "damaged, or of a later version");
  }
  ringcast_frame_reader reader_;
};

} // namespace ringcast

#endif
