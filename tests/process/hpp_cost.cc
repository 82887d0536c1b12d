/* SPDX-License-Identifier: Apache-2.0 */
/* 64 bytes sent and read, `argv[1]` times, by ringcast.hpp or (-DPLAIN) by the C API:
 * tests/lint/hpp_cost.sh counts the instructions. Both check every result and release by a call. */
#include <cstdlib>

#include "ringcast/ringcast.hpp"

int main(int, char **argv) {
  ringcast::writer writer;
  ringcast::reader reader(writer.handle());
  const char message[64] = {1};
  unsigned long sum = 0;
  for (long left = std::atol(argv[1]); left > 0; left--) {
#ifdef PLAIN
    ringcast_frame frame;
    if (ringcast_writer_send(writer.get(), message, sizeof message, RINGCAST_KIND_BYTES,
                             RINGCAST_FOREVER) < 0)
      return 1;
    if (ringcast_reader_next(reader.get(), RINGCAST_FOREVER, &frame) < 0) return 1;
    sum += *static_cast<const unsigned char *>(frame.data) + frame.bytes;
    if (ringcast_reader_release(reader.get(), &frame) < 0) return 1;
#else
    writer.send(message, sizeof message);
    ringcast::frame frame = reader.next();
    sum += *static_cast<const unsigned char *>(frame.data()) + frame.size();
    frame.release();
#endif
  }
  return sum == 0;
}
