# SPDX-License-Identifier: Apache-2.0
"""The blocks of a page that a run writes: from <!-- measured: NAME --> to <!-- end -->."""

import re


def fill(text, blocks):
    """The page's text with the blocks, by name, in place. A block without its one place is a ValueError."""
    for name, block in blocks.items():
        new = f"<!-- measured: {name} -->\n{block}\n<!-- end -->"
        text, count = re.subn(rf"<!-- measured: {name} -->.*?<!-- end -->", lambda _, new=new: new, text, flags=re.S)
        if count != 1:
            raise ValueError(f"{count} places for the block '{name}'")
    return text
