/* SPDX-License-Identifier: Apache-2.0 */
/* Prints JSON as it goes. A NULL key stands for an element of an array, or the whole. */
#ifndef TOOLS_JSON_H
#define TOOLS_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct json {
  FILE *out;
  int depth;
  bool follows; /* something stands before in the same object or array */
};

void json_open(struct json *json, const char *key, char bracket); /* '{' or '[' */
void json_close(struct json *json, char bracket);                 /* '}' or ']' */
void json_string(struct json *json, const char *key, const char *value);
void json_integer(struct json *json, const char *key, int64_t value);
void json_number(struct json *json, const char *key, double value); /* four digits; not a number: null */
void json_boolean(struct json *json, const char *key, bool value);
void json_percentiles(struct json *json, const char *key, double p50, double p99); /* p99: NAN: not measured */

#endif
