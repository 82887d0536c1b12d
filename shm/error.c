/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ringcast/inspect.h"

static _Thread_local char text[512];
static _Thread_local const char *sentence_now = "";

/* Arguments may be texts of other processes, or cut inside a character, so that the whole sentence is made printable. */
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
