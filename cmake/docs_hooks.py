# SPDX-License-Identifier: Apache-2.0
"""Hooks of MkDocs (mkdocs.yml): the pages that docs/ does not hold, and links that work on the forge and on the site.

Generated: the root's own pages, the reference of C (reference.py) and Python (mkdocstrings), and a copy of each source
file that a page links to, unless repo_url says where the sources are.
"""

import ast
import json
import logging
import pathlib
import posixpath
import re
import sys
import textwrap

from mkdocs.structure.files import File, InclusionLevel

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import reference

ROOT = pathlib.Path(__file__).resolve().parents[1]
ROOT_PAGES = {f"{name}.md": f"project/{name.lower()}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")}
ROOT_PAGES |= {"RELEASING.md": "project/releasing.md", "README.md": "project/readme.md"}
MODULES = ["ringcast", "ringcast.torch", "ringcast.vllm", "ringcast.sglang", "ringcast.profile", "ringcast.trace"]
MODULES += ["ringcast.exceptions", "ringcast.bench"]
LANGUAGES = {".c": "c", ".h": "c", ".hpp": "cpp", ".cu": "cpp", ".py": "python", ".pyi": "python", ".sh": "bash"}
NOT_FOUND_BY_SEARCH = "---\nsearch:\n  exclude: true\n---\n"
LINK = re.compile(r"(?<=\]\()([^)\s#]*)(#[^)\s]*)?(?=[)\s])")
MAN_LINK = re.compile(r"\*\*([\w-]+)\*\*\(([137])\)")
PAGE_NAME = re.compile(r"\[(?:docs/)?([\w-]+)\.md\](?=\()")
BRACKETS = re.compile(r"(?<![!\\\]])\[[^\[\]\n]*\](?= \[)|(?<=\] )\[[^\[\]\n]*\](?!\()")
ALONE = {"index.md", "start.md"}  # pages that are a tab of their own: no column of one entry
DRAWING = re.compile(r'(?<!">)<img[^>]* src="([^"]+\.svg)"[^>]*>')
log = logging.getLogger("mkdocs.hooks.docs")


# ---- Pages that are made ---------------------------------------------------------------------------------------------


def c_pages(headers):
    return {f"reference/c/{name}.md": reference.page(headers, name) for name in headers.pages}


def python_pages():
    for module in MODULES:
        text = f"# {module}\n\n::: {module}\n"
        path = ROOT / "python" / module.replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        about = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))).split("\n\n")[0]
        text = f"---\ndescription: {json.dumps(described(about, about))}\n---\n{text}"
        if module == "ringcast.bench":
            text += commands("python/ringcast/bench/__main__.py")
        yield f"reference/python/{module}.md", text


def commands(name):
    """The commands of a module that is run with `python -m`, from its table COMMANDS."""
    tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
    (table,) = (n.value for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "COMMANDS")
    rows = [f"| `{key}` | {said} |" for key, said in ast.literal_eval(table).items()]
    return "\n".join(["\n| command | what is measured |\n|---|---|", *rows]) + "\n"


def source_page(path):
    if path.is_dir():
        names = sorted(child.name + "/" * child.is_dir() for child in path.iterdir() if child.name[0] not in "._")
        return (
            f"{NOT_FOUND_BY_SEARCH}# {path.relative_to(ROOT)}/\n\n" + "\n".join(f"- `{name}`" for name in names) + "\n"
        )
    text = path.read_text(encoding="utf-8")
    language = LANGUAGES.get(path.suffix, "text")
    return f"{NOT_FOUND_BY_SEARCH}# {path.relative_to(ROOT)}\n\n~~~~~~{language}\n{text}\n~~~~~~\n"


# ---- Links -----------------------------------------------------------------------------------------------------------


def outside_code(markdown, change):
    """The text with change(text) in place of each part that is neither a fenced block nor in backticks."""
    parts = re.split(r"(^(?:```+|~~~+).*?^(?:```+|~~~+)$|(?<!`)`[^`\n]+`(?!`))", markdown, flags=re.M | re.S)
    return "".join(part if at % 2 else change(part) for at, part in enumerate(parts))


def literal(text):
    return re.sub(r"([\[\]])", r"\\\1", text)


def repository_path(uri):
    """The path in the repository of a page of the site."""
    return next((name for name, page in ROOT_PAGES.items() if page == uri), f"docs/{uri}")


def target_of(uri, link):
    """The path in the repository that a relative link of a page leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(repository_path(uri)), link))


def page_of(target, repo_url):
    """The page of the site, or the address, that stands for a file of the repository."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    if target in ROOT_PAGES:
        return ROOT_PAGES[target]
    if header := re.fullmatch(r"include/ringcast/(\w+)\.h", target):
        return f"reference/c/{header[1]}.md"
    return f"{repo_url.rstrip('/')}/blob/main/{target}" if repo_url else f"source/{target}.md"


def titled(nav):
    """(page, title) of each entry of the navigation."""
    for entry in nav:
        for title, inner in entry.items():
            yield from titled(inner) if isinstance(inner, list) else [(inner, title)]


def is_relative(link):
    return link and not re.match(r"[a-z]+:|/", link)


def rewritten(markdown, uri, config):
    """The links of the forge as links of the site, and titles of pages where the text is a file's name."""

    def change(found):
        link, anchor = found[1], found[2] or ""
        if not is_relative(link):
            return found[0]
        page = page_of(target_of(uri, link), config.repo_url)
        if "://" in page:
            return page + anchor
        anchor = "" if page.startswith("reference/c/") else anchor
        return posixpath.relpath(page, posixpath.dirname(uri) or ".") + anchor

    titles = dict(titled(config.nav))
    markdown = PAGE_NAME.sub(lambda found: f"[{titles.get(found[1] + '.md', found[0][1:-1])}]", markdown)
    # GitHub takes "[a] [b]" for text, Python-Markdown for a link.
    return outside_code(markdown, lambda text: BRACKETS.sub(lambda found: literal(found[0]), LINK.sub(change, text)))


# ---- Manual pages ----------------------------------------------------------------------------------------------------


def man_page(markdown, uri, headers):
    """A manual page with a title, its sections below it, and links to other pages."""
    name, section = re.fullmatch(r"man/(.*)\.(\d)\.md", uri).groups()

    def linked(found):
        if found[2] == "3":
            address = reference.address(headers, found[1])
            return f"[{found[0]}](../reference/c/{address})" if address else found[0]
        there = (ROOT / "docs" / "man" / f"{found[1]}.{found[2]}.md").exists()
        return f"[{found[0]}]({found[1]}.{found[2]}.md)" if there else found[0]

    text = outside_code(re.sub(r"^# ", "## ", markdown, flags=re.M), literal)
    return f"# {name}({section})\n\n" + outside_code(text, lambda part: MAN_LINK.sub(linked, part))


# ---- MkDocs' events --------------------------------------------------------------------------------------------------

made = {}  # the pages that are made: address, text
headers = None


def on_config(config):
    global headers
    headers = reference.Headers()
    made.clear()
    made.update(c_pages(headers))
    made.update(python_pages())
    for name, uri in ROOT_PAGES.items():
        if (ROOT / name).exists():
            made[uri] = NOT_FOUND_BY_SEARCH * (name == "README.md") + (ROOT / name).read_text(encoding="utf-8")
    config.nav = [expanded(entry) for entry in config.nav]
    return config


def expanded(entry):
    """An entry of the navigation; a folder (reference/c/) becomes its pages."""
    if isinstance(entry, dict):
        return {title: expanded(inner) for title, inner in entry.items()}
    if isinstance(entry, list):
        return [expanded(inner) for inner in entry]
    if not entry.endswith("/"):
        return entry
    if entry == "man/":
        found = sorted((ROOT / "docs" / "man").glob("*.md"), key=lambda path: path.stem[::-1][0] + path.stem)
        return [{re.sub(r"\.(\d)$", r"(\1)", path.stem): f"man/{path.name}"} for path in found]
    titles = {uri: uri.removeprefix(entry).removesuffix(".md") for uri in made if uri.startswith(entry)}
    return [{f"{title}.h" if entry == "reference/c/" else title: uri} for uri, title in titles.items()]


def on_files(files, config):
    pages = {file.src_uri: (ROOT / "docs" / file.src_uri).read_text("utf-8") for file in files.documentation_pages()}
    for uri, text in [*pages.items(), *made.items()]:
        outside = re.findall(LINK, outside_code(text, str)) if not uri.startswith("reference/") else []
        for link, _ in outside:
            page = page_of(target_of(uri, link), config.repo_url) if is_relative(link) else ""
            path = ROOT / page.removeprefix("source/").removesuffix(".md")
            if page.startswith("source/") and path.exists():
                made[page] = source_page(path)
    for uri, text in made.items():
        hidden = uri.startswith("source/") or uri == "project/readme.md"
        inclusion = InclusionLevel.NOT_IN_NAV if hidden else InclusionLevel.INCLUDED
        files.append(File.generated(config, uri, content=text, inclusion=inclusion))
    return files


def on_page_markdown(markdown, page, config, files):
    uri = page.file.src_uri
    if uri.startswith("source/"):
        return markdown
    if uri.startswith("man/"):
        markdown = man_page(markdown, uri, headers)
    elif not uri.startswith("reference/"):
        markdown = rewritten(markdown, uri, config)
    for number, line in lists_in_paragraphs(markdown):
        log.warning("%s: line %d: a list needs an empty line before it: %s", uri, number, line)
    page.meta.setdefault("description", described(markdown, config.site_description))
    if uri in ALONE:
        page.meta["hide"] = ["navigation"]
    return markdown


def on_page_content(html, **_):
    html = re.sub(r"<code>(-E[A-Z0-9]+)</code>", r'<code class="errno">\1</code>', html)
    # A drawing leads to itself: a narrow window shrinks the text of the drawing.
    html = DRAWING.sub(lambda found: f'<a href="{found[1]}">{found[0]}</a>', html)
    # A figure and its unit stay on one line of a table.
    return re.sub(r"(<td[^>]*>[\d.,]+) ([^\s<]{1,8}</td>)", r"\1&nbsp;\2", html)


def lists_in_paragraphs(markdown):
    before, fenced = "", False
    for number, line in enumerate(markdown.split("\n"), 1):
        fenced ^= line.startswith(("```", "~~~"))
        if not fenced and re.match(r"(?:[-*]|1\.) ", line) and re.match(r"[^\s#<|*>-](?!\. )", before):
            yield number, line
        before = line


def described(markdown, otherwise):
    """The beginning of the first paragraph, for search engines and previews."""
    text = re.sub(r"<!--.*?-->|^(```|~~~).*?^\1$", "", markdown, flags=re.M | re.S)
    for block in re.split(r"\n\s*\n", text):
        plain = re.sub(r"[`*\\]", "", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", block)).strip()
        if re.match(r"[A-Za-z`\[*]", block) and len(plain) > 25:
            return textwrap.shorten(plain.replace('"', "'"), 180, placeholder=" ...")
    return otherwise
