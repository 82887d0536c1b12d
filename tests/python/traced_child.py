# SPDX-License-Identifier: Apache-2.0
"""What a child of multiprocessing does in test_trace.py."""

import ringcast
from ringcast import trace

trace._WAIT = 60  # seconds: another process may stand still in a flush


def receive(handle):
    with ringcast.Reader(handle, name="child") as reader:
        reader.recv(60)
