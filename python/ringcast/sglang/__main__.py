# SPDX-License-Identifier: Apache-2.0
"""The command line of ringcast.sglang."""

import argparse
import sys
from typing import List, Optional

from ringcast.sglang import advise

EXAMPLES = """
EXAMPLES
  python -m ringcast.sglang advise
  python -m ringcast.sglang advise --tp 2 --tp 4 --format json
  python -m ringcast.sglang advise --seconds 0.01
"""


def main(arguments: Optional[List[str]] = None) -> int:
    formatter = argparse.RawDescriptionHelpFormatter
    about = "ringcast in SGLang."
    parser = argparse.ArgumentParser(
        prog="python -m ringcast.sglang",
        description=about,
        epilog=EXAMPLES,
        formatter_class=formatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    what = (
        "which way pays on this machine, by size and ranks: hashing by each rank, share_hash or "
        "share_once"
    )
    command = commands.add_parser(
        "advise", help=what, description=what, epilog=EXAMPLES, formatter_class=formatter
    )
    advise.add_options(command)
    options = parser.parse_args(arguments)
    given = [*(options.size or ()), *(options.tp or ())]
    if any(number < 1 for number in given) or options.seconds < 0:
        parser.error("--size and --tp take 1 or more, --seconds 0 or more")
    return advise.run(options)


if __name__ == "__main__":
    sys.exit(main())
