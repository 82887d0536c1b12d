# SPDX-License-Identifier: Apache-2.0
"""What a child of multiprocessing does in test_trace.py."""

import ringcast


def receive(handle):
    with ringcast.Reader(handle, name="child") as reader:
        reader.recv(60)
