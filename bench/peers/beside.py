# SPDX-License-Identifier: Apache-2.0
"""The programs that measure beside the groups (codec.py, gil.py, counts.py, adapters/gpu.py): the options that these
programs have in common, and their rows, printed as they come or as a list in JSON."""

import argparse
import contextlib
import json
import sys
from typing import Any, Callable, Dict, Iterable, List, Sequence

Row = Dict[str, Any]


def options_of(doc: Any, quick: str, ways: Sequence[str] = ()) -> argparse.Namespace:
    """`quick`: what --quick means. `ways`: those that may be measured alone, by processes of the same program, which
    have the options without a help."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="a list of rows")
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--vllm", metavar="FOLDER", help="vLLM's source, for its queue and the classes of its messages")
    if ways:
        parser.add_argument("--way", choices=ways, help="only this way")
        parser.add_argument("--payload", help=argparse.SUPPRESS)
        parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
        parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


def tell(found: Iterable[List[Row]], line: Callable[[Row], str], as_json: bool) -> None:
    """`line`: a row for a reader. In JSON nothing else is printed, whatever a peer prints."""
    rows = []
    with contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
        for some in found:
            rows += some
            if not as_json:
                print(*map(line, some), sep="\n", flush=True)
    if as_json:
        print(json.dumps(rows))
