/* SPDX-License-Identifier: Apache-2.0 */
/* Values of options, for cli_parse. Each returns false unless all of the text is a valid value. */
#ifndef TOOLS_PARSE_H
#define TOOLS_PARSE_H

#include <stdbool.h>
#include <stdint.h>

#define PARSE_BYTES   "a number of bytes, such as 64K or 10G"
#define PARSE_WHOLE   "a whole number; 0: no limit"
#define PARSE_SECONDS "a number of seconds, 0 to 1e9"

bool parse_bytes(const char *text, void *out);   /* uint64_t: "64K" is 65536; K, M and G */
bool parse_whole(const char *text, void *out);   /* uint64_t */
bool parse_seconds(const char *text, void *out); /* double */
bool parse_text(const char *text, void *out);    /* const char * */
bool parse_number(const char *text, double least, double most, double *out);

#endif
