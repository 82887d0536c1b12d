/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <stdbool.h>
#include <stdint.h>

#include "ringcast/inspect.h"

/* ---- Foreign text, made fit to be shown ------------------------------------------------------ */

enum { ESCAPE = 4 /* the length of \xNN */ };

/* The length of the UTF-8 character at `at`, 1 to 4, and its code point. 0: the first byte begins
 * no valid character. */
static size_t character(const uint8_t *at, size_t left, uint32_t *code) {
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  size_t length = 0;
  if (*at < 0x80) length = 1;
  else if (*at >= 0xc2 && *at < 0xe0) length = 2;
  else if (*at >= 0xe0 && *at < 0xf0) length = 3;
  else if (*at >= 0xf0 && *at < 0xf5) length = 4;
  if (length == 0 || length > left) return 0;
  *code = *at;
  if (length > 1) *code &= 0xffu >> (length + 1);
  for (size_t i = 1; i < length; i++) {
    if ((at[i] & 0xc0) != 0x80) return 0;
    *code = *code << 6 | (at[i] & 0x3f);
  }
  bool is_surrogate = *code >= 0xd800 && *code < 0xe000;
  if (*code < least[length] || *code > 0x10ffff || is_surrogate) return 0;
  return length;
}

/* Whether the character controls the terminal, the direction of writing or the end of lines, or
 * can't be seen. */
static bool controls(uint32_t code) {
  static const struct {
    uint32_t first, last;
  } ranges[] = {
      {0, 0x1f},                            /* C0 */
      {0x7f, 0x9f},                         /* DEL, C1 */
      {0x061c, 0x061c}, {0x200b, 0x200f},   /* direction, widths of 0 */
      {0x2028, 0x202e},                     /* separators of lines and paragraphs, direction */
      {0x2060, 0x206f}, {0xfeff, 0xfeff},   /* direction, widths of 0 */
      {0xfff9, 0xfffb}, {0xe0000, 0xe007f}, /* annotations, tags */
  };
  for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
    if (code >= ranges[i].first && code <= ranges[i].last) return true;
  return false;
}

static void escape(const uint8_t *from, size_t count, char *to) {
  static const char digits[] = "0123456789abcdef";
  for (size_t i = 0; i < count; i++) {
    to[ESCAPE * i] = '\\';
    to[ESCAPE * i + 1] = 'x';
    to[ESCAPE * i + 2] = digits[from[i] >> 4];
    to[ESCAPE * i + 3] = digits[from[i] & 15];
  }
}

size_t ringcast_printable(const char *text, size_t length, char *out, size_t bytes) {
  const uint8_t *at = (const uint8_t *)text;
  size_t used = 0;
  if (bytes == 0) return 0;
  size_t left = length;
  while (left > 0) {
    uint32_t code = 0;
    size_t valid = character(at, left, &code);
    size_t taken = valid > 0 ? valid : 1;
    bool is_shown = valid > 0 && !controls(code);
    size_t needs = is_shown ? taken : ESCAPE * taken;
    if (needs >= bytes - used) break;
    if (is_shown) memcpy(out + used, at, taken);
    else escape(at, taken, out + used);
    used += needs;
    at += taken;
    left -= taken;
  }
  out[used] = '\0';
  return used;
}

/* ---- The error of this thread ---------------------------------------------------------------- */

static _Thread_local char text[512];
static _Thread_local const char *sentence_now = "";

/* Arguments may be texts of other processes, or cut inside a character, so that the whole sentence
 * is made printable. */
int rc_fail(int code, const char *format, ...) {
  char fresh[sizeof text]; /* apart, because an argument may point into text */
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(fresh, sizeof fresh, format, arguments);
  va_end(arguments);
  ringcast_printable(fresh, strlen(fresh), text, sizeof text);
  sentence_now = text;
  return code;
}

int rc_fail_as(int code, const char *sentence) {
  sentence_now = sentence;
  return code;
}

const char *rc_error_text(void) { return sentence_now; }
