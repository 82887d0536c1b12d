# SPDX-License-Identifier: Apache-2.0
"""Texts of other processes in errors: none controls a terminal, or goes on in a line of its own."""

import pickle

import pytest
from hostile import ERROR, PICKLE, T, VALUE, class_token, entry, frame_of, nested, text

import ringcast

pytestmark = pytest.mark.alike

EVIL = "\x1b[31m\x9b2J\u202eevil\u2028\ufeff"
TEXT = EVIL.encode()

FRAMES = {
    "sent error": frame_of(VALUE, [entry(ERROR, size=len(TEXT))], TEXT),
    "module": nested(class_token("dataclass", EVIL, "Class")),
    "class": nested(class_token("dataclass", "natives", EVIL)),
    "fields": nested(class_token("dataclass", "natives", "Plain", EVIL)),
    "package": nested(class_token("dataclass", "natives." + EVIL, "Class")),
    "member": nested(class_token("enum", "natives", "Color") + bytes([T.MEMBER, 0]) + text(EVIL)),
    "torch.dtype": nested(bytes([T.DTYPE]) + text(EVIL)[1:]),
    "pickle": frame_of(VALUE, [entry(PICKLE, size=len(TEXT) + 8)], b"c" + TEXT + b"\nname\n."),
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
@pytest.mark.parametrize("allow_pickle", [True, False])
def test_an_error_shows_foreign_text_without_controls(frame, allow_pickle):
    with pytest.raises((ringcast.Error, ImportError, pickle.UnpicklingError)) as raised:
        ringcast.unpack(frame, allow_pickle=allow_pickle)
    assert str(raised.value).isprintable()
    assert str(getattr(raised.value, "strerror", "")).isprintable()


def test_the_lines_of_a_sent_error_stay_lines():
    with ringcast.Writer() as writer, ringcast.Reader(writer.handle) as reader:
        writer.send_error(f"first\nsecond {EVIL}\n")
        with pytest.raises(ringcast.SendError) as raised:
            reader.recv(1)
    lines = str(raised.value).split("\n")
    assert lines[0] == "first" and lines[2] == "" and lines[1].isprintable()


def test_the_name_of_a_reader_is_printable_and_is_cut_between_characters():
    for name in EVIL, "\x1b" * 40, "中" * 40, "rank 3 \U0001f600" * 3:
        with ringcast.Writer(4096) as writer, ringcast.Reader(writer.handle, name=name):
            shown = writer.peers()[0].name
            assert shown.isprintable() and len(shown.encode()) > 27
            with pytest.raises(TimeoutError, match="reader 0") as raised:
                while True:
                    writer.send(bytes(512), 0.01)
            assert str(raised.value).isprintable() and shown in str(raised.value)
