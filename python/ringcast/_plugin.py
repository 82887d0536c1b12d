# SPDX-License-Identifier: Apache-2.0
"""What SGLang calls in each of its processes, by the entry point sglang.srt.plugins; it costs nothing unless asked."""

import os


def sglang() -> None:
    if os.environ.get("RINGCAST_SGLANG", "0") not in ("", "0"):
        from ringcast.sglang.install import install

        install()
