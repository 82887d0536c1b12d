# SPDX-License-Identifier: Apache-2.0
"""The shared library stays where it is when a program that has loaded it as a plugin unloads it (dlclose): its threads
may be at work still, for a device that reads a ring which was closed."""

import argparse
import subprocess
import sys


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("--readelf", default="readelf")
    args = parser.parse_args()
    command = [args.readelf, "-d", args.library]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    stays = any("NODELETE" in line for line in out.splitlines() if "FLAGS_1" in line)
    print(f"{args.library}: {'stays' if stays else 'can be unloaded while its threads run: link it with -z nodelete'}")
    return 0 if stays else 1


sys.exit(main())
