/* SPDX-License-Identifier: Apache-2.0 */
/* Foreign text is shown without what controls a terminal, and is cut between characters. */
#include <stdlib.h>

#include "ringcast/inspect.h"
#include "tests/support/suite.h"

enum { WHOLE = 256 };

static const struct {
  const char *text;
  size_t bytes; /* of `out`; 0: enough */
  const char *shown;
} cases[] = {
    {"", 0, ""},
    {"rank 3", 0, "rank 3"},
    {"back\\slash \"x\"", 0, "back\\slash \"x\""},
    {"\u00e9\u4e2d\U0001f600", 0, "\u00e9\u4e2d\U0001f600"},
    {"a\n\r\t\x1b[31m\x7f", 0, "a\\x0a\\x0d\\x09\\x1b[31m\\x7f"},
    {"\xc2\x80\xc2\x9b"
     "2J\u00a0",
     0, "\\xc2\\x80\\xc2\\x9b2J\u00a0"},
    {"\u200a\u200b\u200f\u2010", 0, "\u200a\\xe2\\x80\\x8b\\xe2\\x80\\x8f\u2010"},
    {"\u2027\u2028\u2029\u202a\u202e\u202f", 0,
     "\u2027\\xe2\\x80\\xa8\\xe2\\x80\\xa9\\xe2\\x80\\xaa\\xe2\\x80\\xae\u202f"},
    {"\u2060\u2066\u2069\u2070\ufeff", 0,
     "\\xe2\\x81\\xa0\\xe2\\x81\\xa6\\xe2\\x81\\xa9\u2070\\xef\\xbb\\xbf"},
    {"\u061c\ufff9\U000e0041", 0, "\\xd8\\x9c\\xef\\xbf\\xb9\\xf3\\xa0\\x81\\x81"},
    {"\x80\xff", 0, "\\x80\\xff"},              /* begin no character */
    {"\xc0\x80\xe0\x80\x80\xf0\x80\x80\x80", 0, /* longer than need be */
     "\\xc0\\x80\\xe0\\x80\\x80\\xf0\\x80\\x80\\x80"},
    {"\xed\xa0\x80\xf4\x90\x80\x80", 0, /* a surrogate, beyond U+10FFFF */
     "\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80"},
    {"a\xe4\xb8", 0, "a\\xe4\\xb8"}, /* ends too early */
    {"\xe4\xb8z", 0, "\\xe4\\xb8z"},
    {"abc", 1, ""},
    {"abc", 3, "ab"},
    {"abc", 4, "abc"},
    {"a\u4e2d", 4, "a"}, /* is cut between characters, and between escapes */
    {"a\u4e2d", 5, "a\u4e2d"},
    {"a\x1b", 5, "a"},
    {"a\x1b", 6, "a\\x1b"},
    {"\u202ez", 12, ""},
    {"\U0001f600", 4, ""},
};

/* Of a copy of its own, in memory of its own, so that a sanitizer sees each byte too many. */
static void check_case(const char *text, size_t length, size_t bytes, const char *shown) {
  char *from = malloc(length + 1), *out = malloc(bytes), *again = malloc(bytes);
  memcpy(from, text, length);
  from = realloc(from, length > 0 ? length : 1);
  ck_assert_uint_eq(ringcast_printable(from, length, out, bytes), strlen(shown));
  ck_assert_str_eq(out, shown);
  ck_assert_uint_eq(ringcast_printable(out, strlen(out), again, bytes), strlen(shown));
  ck_assert_str_eq(again, shown);
  free(from);
  free(out);
  free(again);
}

TEST(what_controls_or_is_no_text_is_escaped_and_nothing_is_cut_inside_a_character) {
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    size_t bytes = cases[i].bytes > 0 ? cases[i].bytes : WHOLE;
    check_case(cases[i].text, strlen(cases[i].text), bytes, cases[i].shown);
  }
  check_case("a\0b", 3, WHOLE, "a\\x00b");
}

TEST(without_room_nothing_is_written) {
  char out = 'x';
  ck_assert_uint_eq(ringcast_printable("abc", 3, &out, 0), 0);
  ck_assert_int_eq(out, 'x');
}

RUN_TESTS("printable", NULL, NULL)
