# SPDX-License-Identifier: Apache-2.0
"""The memory of this process, as Linux counts it."""

import re
from typing import Dict


def of_process() -> Dict[str, int]:
    """Bytes: resident now, and the most so far. Empty where /proc is not mounted."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            text = file.read()
    except OSError:
        return {}
    found = re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB$", text, re.M)
    return {{"VmRSS": "rss", "VmHWM": "peak"}[name]: int(kilobytes) << 10 for name, kilobytes in found}
