/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/json.h"

#include <inttypes.h>
#include <math.h>

static void quote(FILE *out, const char *text) {
  fputc('"', out);
  for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
    if (*at == '"' || *at == '\\') fprintf(out, "\\%c", *at);
    else if (*at < 0x20) fprintf(out, "\\u%04x", *at);
    else fputc(*at, out);
  }
  fputc('"', out);
}

static void line(struct json *json) { fprintf(json->out, "\n%*s", 2 * json->depth, ""); }

static void begin(struct json *json, const char *key) {
  if (json->follows) fputc(',', json->out);
  if (json->depth > 0) line(json);
  json->follows = true;
  if (!key) return;
  quote(json->out, key);
  fputs(": ", json->out);
}

void json_open(struct json *json, const char *key, char bracket) {
  begin(json, key);
  fputc(bracket, json->out);
  json->depth++;
  json->follows = false;
}

void json_close(struct json *json, char bracket) {
  json->depth--;
  if (json->follows) line(json);
  fputc(bracket, json->out);
  json->follows = true;
  if (json->depth == 0) fputc('\n', json->out);
}

void json_string(struct json *json, const char *key, const char *value) {
  begin(json, key);
  quote(json->out, value);
}

void json_integer(struct json *json, const char *key, int64_t value) {
  begin(json, key);
  fprintf(json->out, "%" PRId64, value);
}

void json_number(struct json *json, const char *key, double value) {
  begin(json, key);
  if (!isfinite(value)) fputs("null", json->out);
  else if (fabs(value) >= 1e4) fprintf(json->out, "%.0f", value);
  else fprintf(json->out, "%.4g", value);
}

void json_boolean(struct json *json, const char *key, bool value) {
  begin(json, key);
  fputs(value ? "true" : "false", json->out);
}

void json_percentiles(struct json *json, const char *key, double p50, double p99) {
  json_open(json, key, '{');
  json_number(json, "p50", p50);
  if (!isnan(p99)) json_number(json, "p99", p99);
  json_close(json, '}');
}
