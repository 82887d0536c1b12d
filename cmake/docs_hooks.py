# SPDX-License-Identifier: Apache-2.0
"""
Hooks of MkDocs (mkdocs.yml): the pages that docs/ does not hold, and links that work on the forge
and on the site.

Made here: the root's own pages, all error texts (errors.py), and the reference of C (reference.py)
and of Python (mkdocstrings).
"""

import logging
import pathlib
import posixpath
import re
import sys

from mkdocs.structure.files import File, InclusionLevel

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import errors
import reference

ROOT = pathlib.Path(__file__).resolve().parents[1]
ROOT_PAGES = {
    f"{name}.md": f"project/{name.lower()}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")
}
ROOT_PAGES |= {"RELEASING.md": "project/releasing.md", "README.md": "project/readme.md"}
MODULES = ["ringcast"] + [
    f"ringcast.{name}" for name in "torch vllm sglang profile trace exceptions".split()
]
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|/)([^)\s#]+)(#[^)\s]*)?(?=[)\s])")
CODE = re.compile(r"(^(?:```+|~~~+).*?^(?:```+|~~~+)$|(?<!`)`[^`\n]+`(?!`))", re.M | re.S)
log = logging.getLogger("mkdocs.hooks.docs")


def made_pages():
    """(address, text) of each page that is made."""
    for name, (top, groups) in reference.headers().items():
        yield f"reference/c/{name}.md", reference.page(name, top, groups)
    for module in MODULES:
        yield f"reference/python/{module}.md", f"# {module}\n\n::: {module}\n"
    yield "reference/errors.md", errors.page()
    for name, uri in ROOT_PAGES.items():
        yield uri, (ROOT / name).read_text(encoding="utf-8")


def on_config(config):
    def expanded(entry):
        """An entry of the navigation; a folder (reference/c/) becomes its pages."""
        if isinstance(entry, dict):
            return {title: expanded(inner) for title, inner in entry.items()}
        if isinstance(entry, list):
            return [expanded(inner) for inner in entry]
        if not entry.endswith("/"):
            return entry
        in_docs = [f"man/{path.name}" for path in sorted((ROOT / "docs/man").glob("*.md"))]
        uris = [uri for uri in [*dict(made_pages()), *in_docs] if uri.startswith(entry)]
        return [{uri.removeprefix(entry).removesuffix(".md"): uri} for uri in uris]

    config.nav = [expanded(entry) for entry in config.nav]
    return config


def on_files(files, config):
    for uri, text in made_pages():
        shown = InclusionLevel.NOT_IN_NAV if uri == "project/readme.md" else InclusionLevel.INCLUDED
        files.append(File.generated(config, uri, content=text, inclusion=shown))
    return files


def on_page_markdown(markdown, page, config, files):
    uri = page.file.src_uri
    if uri.startswith("reference/"):
        return markdown
    if uri.startswith("man/"):
        markdown = f"# {page.file.name}\n\n" + re.sub(r"^# ", "## ", markdown, flags=re.M)
    parts = CODE.split(markdown)
    parts[::2] = [
        LINK.sub(lambda found: link(uri, found, config.repo_url), part) for part in parts[::2]
    ]
    parts[::2] = [re.sub(r"\](?= ?\[)", r"\]", part) for part in parts[::2]]  # "[a] [b]" is no link
    return "".join(parts)


def link(uri, found, repo_url):
    """A link of the forge as a link of the site; MkDocs checks those between pages."""
    path = next((name for name, page in ROOT_PAGES.items() if page == uri), f"docs/{uri}")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), found[1]))
    if not (ROOT / target).exists():
        log.warning("%s: there is no %s", uri, target)
    header = re.fullmatch(r"include/ringcast/(\w+)\.h", target)
    there = target.removeprefix("docs/") if target.startswith("docs/") else ROOT_PAGES.get(target)
    there = f"reference/c/{header[1]}.md" if header else there
    if there:
        return posixpath.relpath(there, posixpath.dirname(uri) or ".") + (
            "" if header else found[2] or ""
        )
    return f"{repo_url.rstrip('/')}/blob/main/{target}" if repo_url else "#"
