/* SPDX-License-Identifier: Apache-2.0 */
/* Values of options. Each returns false unless all of the text is a valid value. */
#ifndef TOOLS_PARSE_H
#define TOOLS_PARSE_H

#include <stdbool.h>
#include <stdint.h>

bool parse_bytes(const char *text, uint64_t *out); /* "64K" is 65536; K, M and G */
bool parse_whole(const char *text, uint64_t least, uint64_t most, uint64_t *out);
bool parse_number(const char *text, double least, double most, double *out);

#endif
