# SPDX-License-Identifier: Apache-2.0
"""What the public headers declare, and what their comments say of it: returned values and errors.

The headers are regular: a comment at column 0 describes the declarations that follow without an empty line. A group is
a comment and its declarations. A comment alone is text, and "---- Title ----" begins a section.
"""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]
INCLUDE = ROOT / "include" / "ringcast"
# In the order in which a reader needs them.
ORDER = ["ringcast", "batch", "estimate", "inspect", "frame", "object", "gpu", "version"]

SECTION = re.compile(r"/\* -{4} (.*?) -+ \*/$")
PUBLIC = "RINGCAST_API "
FUNCTION = re.compile(r"\b(ringcast_\w+)\(")
CODES = r"-E[A-Z0-9]+(?:(?:,\s|\sand\s|,\sand\s)-E[A-Z0-9]+)*"
# What a comment says of an error: "-EINVAL (why)", "-EINVAL: why", "-EINVAL if why", or the code alone.
ERROR = re.compile(
    rf"(?P<codes>{CODES})(?: \((?P<in>[^()]*)\)|:\s(?P<is>[^;]*?)(?=;|\.$|, -E)|"
    r" (?:if )?(?P<if>(?<=if )[^;]*?|(?:as|for|also|past|unless)\b[^;]*?)(?=;|\.$|,(?: and)? -E))?"
)
# A sentence that only lists codes; of a page with a table of errors it says nothing more.
ONLY_CODES = re.compile(r"(?:(?<=\.\s)|^)-E[A-Z0-9]+(?:\s\([^()]*\))?(?:,\s-E[A-Z0-9]+(?:\s\([^()]*\))?)*\.(?=\s|$)")
AS = re.compile(r"\b(?:[Ee]rrors as|As) (\w+(?:(?:, | and )ringcast_\w+)*)")
EXCEPT = re.compile(rf", except ({CODES})[^.]*")
RETURNS = re.compile(r"^Returns?\b|^returns?\b|\band returns\b")


class Group:
    """A comment and the declarations that it describes."""

    def __init__(self, header, section, comment, line):
        self.header, self.section, self.comment, self.line = header, section, comment, line
        self.code = []  # declarations as the header has them, inline functions without their bodies

    def names(self, kind):
        pattern = {
            "function": FUNCTION,
            "type": re.compile(r"^(?:struct|enum) (\w+) \{|^typedef [^(]*?\*?(\w+);", re.M),
            "macro": re.compile(r"^#define (\w+)", re.M),
            "value": re.compile(r"^  (RINGCAST_\w+) =", re.M),
        }[kind]
        found = []
        for code in self.code:
            if kind == "function" and not is_function(code):
                continue
            matches = [next(filter(None, match.groups())) for match in pattern.finditer(code)]
            found += matches[:1] if kind == "function" else matches
        return found

    @property
    def functions(self):
        return self.names("function")

    @property
    def all_names(self):
        return [name for kind in ("function", "type", "macro", "value") for name in self.names(kind)]


def returned_types(group):
    heads = (re.match(r"(?:RINGCAST_API |static inline )(.*?)ringcast_", code) for code in group.code)
    return {head[1].strip() for head in heads if head}


def is_function(code):
    return code.startswith((PUBLIC, "static inline "))


def uncommented(lines):
    """The text of a comment, without its stars."""
    text = "\n".join(lines).strip()
    text = re.sub(r"^/\*|\s*\*/$", "", text)
    text = "\n".join(re.sub(r"^ \* ?", "", line).rstrip() for line in text.split("\n"))
    return text[1:] if text.startswith(" ") else text.strip("\n")


def read(name):
    """(text atop the header, its groups)"""
    lines = (INCLUDE / f"{name}.h").read_text(encoding="utf-8").split("\n")
    at, section, group, groups, top = 1, "", None, [], None  # behind the SPDX line
    while at < len(lines):
        line, first = lines[at], at
        at += 1
        if found := SECTION.match(line):
            section, group = found[1], None
        elif line.startswith("/*"):
            while "*/" not in lines[at - 1]:
                at += 1
            text = uncommented(lines[first:at])
            if top is None:
                top = text
                continue
            group = Group(name, section, text, first + 1)
            groups.append(group)
        elif not line.strip():
            group = None
        elif re.match(r'#(ifndef RINGCAST_\w+_H|define RINGCAST_\w+_H$|include|if|else|endif)|extern "C"|}$', line):
            if line.startswith("#if defined"):  # RINGCAST_API itself
                at = lines.index("#endif", at) + 1
        else:
            if line.startswith("#"):
                while lines[at - 1].endswith("\\"):
                    at += 1
            else:
                while not re.match(r"(?:.*;(?:\s*/\*.*)?|})$", lines[at - 1]) or unclosed(lines[first:at]):
                    at += 1
                while lines[at - 1].count("/*") > lines[at - 1].count("*/"):
                    at += 1
            if group is None:
                group = Group(name, section, "", first + 1)
                groups.append(group)
            group.code.append(declared("\n".join(lines[first:at])))
    return top, groups


def unclosed(lines):
    text = re.sub(r"/\*.*?\*/|'.'", "", "\n".join(lines), flags=re.S)
    return text.count("{") != text.count("}")


def declared(code):
    """A declaration as the reference shows it."""
    if code.startswith(PUBLIC):
        return code.replace("\n" + " " * len(PUBLIC), "\n")
    return re.sub(r"\s*\{.*", ";", code, flags=re.S) if code.startswith("static inline") else code


# ---- What a comment says ---------------------------------------------------------------------------------------------


def one_line(text):
    return re.sub(r"\s+", " ", text).strip()


def sentences(text):
    return re.split(r"(?<=\.)\s+(?=[A-Z0-9`-])", one_line(text))


def returns(text):
    """The parts of sentences, between semicolons, that say what is returned; errors are no such parts."""
    text = re.sub(r"\s*\([^()]*\)(?=[\s.,;:])", "", one_line(text))
    parts = [part for said in sentences(text) if not said.startswith("-E") for part in re.split(r";\s", said)]
    found = [part.rstrip(".") + "." for part in parts if RETURNS.search(part)]
    return " ".join(part[:1].upper() + part[1:] for part in found)


def summary(group):
    """For the line NAME of a man page: the first sentence, or the part before its first colon or semicolon."""
    first = re.split(r"\.(?:\s|$)|[:;](?:\s|$)", one_line(group.comment))[0].replace("`", "")
    return first[:1].lower() + first[1:] if not re.match(r"[A-Z]{2}|ringcast|RINGCAST", first) else first


class Headers:
    """All headers, and what is said in one of them about another."""

    def __init__(self):
        self.pages = {name: read(name) for name in ORDER}
        self.groups = [group for _, groups in self.pages.values() for group in groups]
        self.of = {name: group for group in reversed(self.groups) for name in group.all_names}
        # {header: {code: its general meaning}}, of the tables atop ringcast.h and gpu.h
        results = self.pages["ringcast"][0].split("\nResults.")[1]
        rows = re.findall(r"^  (-E[A-Z0-9]+(?:, -E[A-Z0-9]+)*) +(.*(?:\n {6}.*)*)", results, re.M)
        general = {code: one_line(text) for codes, text in rows for code in codes.split(", ")}
        general = {code: re.sub(r"^and other codes (.*?):.*", r"\1", text) for code, text in general.items()}
        gpu = ERROR.finditer(one_line(self.pages["gpu"][0].split("\nResults ")[1]))
        gpu = {match["codes"]: match["in"] for match in gpu if match["in"]}
        self.meanings = {name: {**general, **(gpu if name == "gpu" else {})} for name in ORDER}

    def named(self, word, group):
        """The group that "Errors as reserve" or "As ringcast_writer_stats" names."""
        if word in self.of or not word:
            return self.of.get(word)
        near = [other for other in self.groups if other.header == group.header] + self.groups
        return next((other for other in near for name in other.functions if name.endswith("_" + word.strip("_"))), None)

    def errors(self, group, seen=()):
        """{code: its meaning there}, those of the functions that the comment refers to included"""
        if returned_types(group) == {"void"}:
            return {}
        found, general = {}, self.meanings[group.header]
        for said in sentences(group.comment):
            said = EXCEPT.sub("", said)
            inner = " ".join(re.findall(rf"\(({CODES}: [^()]*)\)", said))
            starts = said.startswith("-E") or re.match(r"Returns .*\bor -E|[Ee]rrors as ", said)
            for match in ERROR.finditer(said if starts else inner):
                *others, last = re.findall(r"-E[A-Z0-9]+", match["codes"])
                why = next(filter(None, match.group("in", "is", "if")), "")
                found[last] = why or found.get(last) or general.get(last, "")
                found.update({code: general.get(code, "") for code in others if code not in found})
        for word in re.split(r", | and ", ", ".join(AS.findall(one_line(group.comment)))):
            other = self.named(word, group)
            if other is not None and other is not group and other not in seen:
                found = {**self.errors(other, (*seen, group)), **found}
        for codes in EXCEPT.findall(one_line(group.comment)):
            found = {code: why for code, why in found.items() if code not in re.findall(r"-E[A-Z0-9]+", codes)}
        for code, why in () if seen else self.implied(group):
            said = found.get(code, "")
            found[code] = f"{said}; {why}" if said and why not in (said, general[code]) else why
        return dict(sorted(found.items()))

    def implied(self, group):
        """(code, its meaning) of the errors that ringcast.h lists once, under Results, for all functions of a kind."""
        code = "\n".join(code for code in group.code if is_function(code))
        general = self.meanings["ringcast"]
        if "timeout_ns" in code:
            waits = () if "ringcast_tap *" in code else ("-ECANCELED", "-EDEADLK")  # taps have no cancel, and no waiter
            yield from ((each, general[each]) for each in waits)
            yield "-EINVAL", "the timeout is negative, and not RINGCAST_FOREVER"
        if re.search(r"\boptions\b", code):
            yield "-E2BIG", general["-E2BIG"]
        names = [name for name in re.findall(r"struct (\w+)", code) if name in self.of]
        if any(re.match(rf"struct {name} {{\n  uint32_t size", "\n".join(self.of[name].code)) for name in names):
            yield "-EINVAL", "a struct's `size` is less than 8"
        if re.search(r"\((?:const )?ringcast_reader \*reader", code):
            yield "-EINVAL", "the reader has left (ringcast_reader_leave)"

    def returned(self, group):
        """What the functions of the group return, in words."""
        if returned_types(group) == {"void"}:
            return ""
        said = re.sub(r"\bReturns (.)", lambda found: found[1].upper(), returns(group.comment))
        first = sentences(group.comment)[0]
        plain = "int" in returned_types(group) and not first[0].isdigit()
        return said or ("0, or a negative errno." if plain else first)

    def concurrency(self, group):
        """What ringcast.h says once for all functions with a handle; whatever else a comment says is its own."""
        of_a_handle = any(re.search(r"\((?:const )?ringcast_(?:gpu_)?(?:writer|reader|tap) \*", c) for c in group.code)
        return "One thread at a time per handle." if of_a_handle and "ny thread" not in group.comment else ""

    def complaints(self):
        yield from (f"cmake/headers.py has no {name}.h" for name in {p.stem for p in INCLUDE.glob("*.h")} - {*ORDER})
        for group in self.groups:
            where = f"include/ringcast/{group.header}.h:{group.line}"
            public = [name for code in group.code if code.startswith(PUBLIC) for name in FUNCTION.findall(code)[:1]]
            if public and not group.comment:
                yield f"{where}: {', '.join(public)}: no comment says what the function does"
            elif public and not 10 <= len(summary(group)) <= 160:
                yield f"{where}: {public[0]}: the first sentence is no summary: '{summary(group)}'"
        exported = set(re.findall(r"^ +(ringcast_\w+);", (ROOT / "ringcast.map").read_text(encoding="utf-8"), re.M))
        for name in sorted(exported - {name for group in self.groups for name in group.functions}):
            yield f"{name} is in ringcast.map, and no header declares the function"
