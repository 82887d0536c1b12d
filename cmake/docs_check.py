# SPDX-License-Identifier: Apache-2.0
"""Checks the built site: docs_check.py build/docs/site

Each link of a page to the site leads to a file and an anchor that exist, a page has one title and a description, and no
page, style sheet or script loads anything from another host. The links to other sites are listed in external.txt beside
the site, and not followed.
"""

import html.parser
import pathlib
import re
import sys
import urllib.parse

LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
LOADED_LINKS = {"stylesheet", "icon", "preload", "preconnect", "modulepreload", "manifest", "dns-prefetch"}
IN_STYLE = re.compile(r"url\(\s*[\"']?(?!data:)((?:https?:)?//[^)\"']*)|@import\s+[\"']((?:https?:)?//[^\"']*)")


class Page(html.parser.HTMLParser):
    """The anchors of a page, its links, and what it loads."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links, self.loads, self.titles, self.described = {""}, [], [], 0, False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors.update(filter(None, (values.get("id"), values.get("name"))))
        self.titles += tag == "h1"
        self.described |= tag == "meta" and values.get("name") == "description" and bool(values.get("content"))
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        address = values.get(LOADS.get(tag, ""))
        if address and (tag != "link" or LOADED_LINKS & set(values.get("rel", "").split())):
            self.loads.append(address)


def check(site):
    """Complaints, and the addresses of other sites."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    outside, wrong = set(), []
    for path, page in pages.items():
        name = path.relative_to(site)
        if name.name != "404.html" and (page.titles != 1 or not page.described):
            wrong.append(f"{name}: {page.titles} titles, {'a' if page.described else 'no'} description")
        for address in page.links + page.loads:
            parts = urllib.parse.urlsplit(address)
            if parts.scheme or parts.netloc:
                if address in page.loads and parts.scheme != "data":
                    wrong.append(f"{name}: loads {address} from another host")
                outside.add(address)
                continue
            there = path if not parts.path else resolved(site, path, urllib.parse.unquote(parts.path))
            if not there.is_file():
                wrong.append(f"{name}: {address}: there is no such file")
            elif there in pages and urllib.parse.unquote(parts.fragment) not in pages[there].anchors:
                wrong.append(f"{name}: {address}: there is no such anchor")
    for path in site.rglob("*.css"):
        for found in IN_STYLE.findall(path.read_text(encoding="utf-8")):
            wrong.append(f"{path.relative_to(site)}: loads {''.join(found)} from another host")
    return wrong, outside, len(pages)


def resolved(site, path, address):
    there = site / address.lstrip("/") if address.startswith("/") else path.parent / address
    return (there / "index.html" if there.is_dir() else there).resolve()


def main(folder):
    site = pathlib.Path(folder).resolve()
    wrong, outside, count = check(site)
    (site.parent / "external.txt").write_text("".join(f"{address}\n" for address in sorted(outside)), encoding="utf-8")
    print("\n".join([*wrong, f"docs: {count} pages, {len(outside)} addresses elsewhere, {len(wrong)} faults"]))
    return 1 if wrong else 0


sys.exit(main(*sys.argv[1:]))
