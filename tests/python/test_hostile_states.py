# SPDX-License-Identifier: Apache-2.0
"""Streams whose instances have a state that does not fit their class: refused, with nothing made of
them."""

import natives
import pytest
from test_hostile_objects import (
    ABSENT,
    BIGINT,
    DATACLASS,
    DICT,
    ENUM,
    FREE,
    INSTANCE,
    INT32,
    LIST,
    MEMBER,
    NAMEDTUPLE,
    NONE,
    SLOTS,
    STATE,
    class_token,
    frame,
    unpack,
)

import ringcast

pytestmark = pytest.mark.alike

STATES_REFUSED = {
    "a slot that is absent where all are told": [
        *class_token(DATACLASS, "natives", "Bare", "a"),
        INSTANCE,
        0,
        ABSENT,
    ],
    "an absent value in a list": [LIST, 1, ABSENT],
    "an absent root": [ABSENT],
    "an absent key": [DICT, 1, ABSENT, 1],
    "an absent dict": [*FREE, INSTANCE, 0, ABSENT],
    "an absent field of a namedtuple": [
        *class_token(NAMEDTUPLE, "natives", "Pair", "a", "b"),
        INSTANCE,
        0,
        1,
        ABSENT,
    ],
    "fewer slots": [
        *class_token(STATE, "natives", "SlotsAlone", "a", "b"),
        INSTANCE,
        0,
        1,
        2,
        NONE,
    ],
    "other slots": [
        *class_token(STATE, "natives", "SlotsAlone", "a", "b", "c"),
        INSTANCE,
        0,
        1,
        2,
        3,
        NONE,
    ],
    "a slot twice": [
        *class_token(STATE, "natives", "SlotsAlone", "a", "b", "a"),
        INSTANCE,
        0,
        1,
        2,
        3,
        NONE,
    ],
    "slots of a class without": [*class_token(STATE, "natives", "Bare", "a"), INSTANCE, 0, 1, NONE],
    "attributes where there is no dict": [*SLOTS, INSTANCE, 0, 1, 2, 3, DICT, 1, 0x81, 0x61, 1],
    "attributes that are a list": [*FREE, INSTANCE, 0, LIST, 0],
    "attributes that are a number": [*FREE, INSTANCE, 0, 7],
    "an instance without its dict": [*FREE, INSTANCE, 0],
    "a name where there is no dict": [
        *class_token(DATACLASS, "natives", "SlotsAlone", "a", "b", "_SlotsAlone__private", "d"),
        *[INSTANCE, 0, 1, 2, 3, 4],
    ],
    "a name that is a property": [
        *class_token(DATACLASS, "natives", "Bare", "__class__"),
        INSTANCE,
        0,
        1,
    ],
    "the name of the dict itself": [
        *class_token(DATACLASS, "natives", "Bare", "__dict__"),
        INSTANCE,
        0,
        DICT,
        0,
    ],
    "a struct by its state": [
        *class_token(STATE, "natives", "Struct", "a", "b"),
        INSTANCE,
        0,
        1,
        2,
        NONE,
    ],
    "a namedtuple by its state": [*class_token(STATE, "natives", "Pair"), INSTANCE, 0, NONE],
    "an enum by its state": [*class_token(STATE, "natives", "Color"), INSTANCE, 0, NONE],
    "a member of no flag by value": [*class_token(ENUM, "natives", "Color"), MEMBER, 0, 1],
    "a member of more bits than its flag": [
        *class_token(ENUM, "natives", "Bits"),
        MEMBER,
        0,
        BIGINT,
        9,
        *[1] * 9,
    ],
    "names beyond the most": [
        *class_token(DATACLASS, "natives", "Bare", *[f"n{n}" for n in range(201)]),
        NONE,
    ],
    "a text beyond the longest": [*class_token(DATACLASS, "natives", "Bare", "n" * 8192), NONE],
    "a member of a flag that is none": [
        *class_token(ENUM, "natives", "Permission"),
        MEMBER,
        0,
        INT32,
        0,
        0,
        0,
        1,
    ],
}
try:
    natives.Permission(1 << 24)
except ValueError:
    pass
# Python 3.11.2 of Debian 12 takes it for no permission, as it takes any bit above the flag's own
else:
    del STATES_REFUSED["a member of a flag that is none"]


@pytest.mark.parametrize("name", STATES_REFUSED)
def test_a_state_that_does_not_fit_its_class_is_refused(name):
    with pytest.raises((ringcast.ProtocolError, ImportError), match="the frame "):
        unpack(STATES_REFUSED[name])


UNKNOWN = ["x" * 40_000] * 50
LONG = {
    "a class that is not there": class_token(DATACLASS, "types", "Q" * 300_000),
    "a module that is not there": class_token(DATACLASS, "types." + "q" * 300_000, "Q"),
    "fields of no slots": class_token(STATE, "natives", "SlotsAlone", *UNKNOWN),
    "fields of no namedtuple": class_token(NAMEDTUPLE, "natives", "Pair", *UNKNOWN),
}


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("classes", [[], ["types", "natives"]])
def test_what_a_message_says_of_a_frame_is_short(name, classes):
    with pytest.raises((ringcast.ProtocolError, ringcast.PickleRefused, ImportError)) as raised:
        ringcast.unpack(frame(bytes([*LONG[name], NONE])), classes=classes)
    assert len(str(raised.value)) < 1500


def test_a_class_has_names_of_bounded_length(monkeypatch):
    """A class that modules hold which hold each other can be named in any length, and each name is
    kept."""
    monkeypatch.setattr(natives, "itself", natives, raising=False)
    long, good = (
        [*class_token(DATACLASS, "natives", "itself." * n + "Bare"), INSTANCE, 0] for n in (200, 9)
    )
    assert vars(unpack(good)) == {}
    with pytest.raises(ringcast.ProtocolError, match="too long a name"):
        unpack(long)


def test_states_by_hand_are_otherwise_good():
    got = unpack([*SLOTS, INSTANCE, 0, 1, ABSENT, 3, NONE])
    assert (got.a, got._SlotsAlone__private, hasattr(got, "b")) == (1, 3, False)
    assert vars(unpack([*FREE, INSTANCE, 0, NONE])) == {}
    assert vars(unpack([*FREE, INSTANCE, 0, DICT, 2, 0x81, 0x61, 1, 5, 6])) == {"a": 1, 5: 6}
    assert vars(
        unpack([*class_token(DATACLASS, "natives", "Plain", "b", "a"), INSTANCE, 0, 1, 2])
    ) == {"b": 1, "a": 2}
    names = [f"n{n}" for n in range(200)]
    assert (
        list(
            vars(
                unpack(
                    [*class_token(DATACLASS, "natives", "Bare", *names), INSTANCE, 0, *[1] * 200]
                )
            )
        )
        == names
    )
    assert (
        unpack([*class_token(ENUM, "natives", "Bits"), MEMBER, 0, 3])
        is natives.Bits.A | natives.Bits.B
    )
