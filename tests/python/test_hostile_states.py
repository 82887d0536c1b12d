# SPDX-License-Identifier: Apache-2.0
"""Streams whose instances have a state that does not fit their class: refused, with nothing made of them."""

import natives
import pytest
from test_hostile_objects import (
    ABSENT,
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
    unpack,
)

import ringcast

pytestmark = pytest.mark.alike

STATES_REFUSED = {
    "a slot that is absent where all are told": [*class_token(DATACLASS, "natives", "Bare", "a"), INSTANCE, 0, ABSENT],
    "an absent value in a list": [LIST, 1, ABSENT],
    "an absent root": [ABSENT],
    "an absent key": [DICT, 1, ABSENT, 1],
    "an absent dict": [*FREE, INSTANCE, 0, ABSENT],
    "an absent field of a namedtuple": [*class_token(NAMEDTUPLE, "natives", "Pair", "a", "b"), INSTANCE, 0, 1, ABSENT],
    "fewer slots": [*class_token(STATE, "natives", "SlotsAlone", "a", "b"), INSTANCE, 0, 1, 2, NONE],
    "other slots": [*class_token(STATE, "natives", "SlotsAlone", "a", "b", "c"), INSTANCE, 0, 1, 2, 3, NONE],
    "a slot twice": [*class_token(STATE, "natives", "SlotsAlone", "a", "b", "a"), INSTANCE, 0, 1, 2, 3, NONE],
    "slots of a class without": [*class_token(STATE, "natives", "Bare", "a"), INSTANCE, 0, 1, NONE],
    "attributes where there is no dict": [*SLOTS, INSTANCE, 0, 1, 2, 3, DICT, 1, 0x81, 0x61, 1],
    "attributes that are a list": [*FREE, INSTANCE, 0, LIST, 0],
    "attributes that are a number": [*FREE, INSTANCE, 0, 7],
    "an instance without its dict": [*FREE, INSTANCE, 0],
    "a name where there is no dict": [
        *class_token(DATACLASS, "natives", "SlotsAlone", "a", "b", "_SlotsAlone__private", "d"),
        *[INSTANCE, 0, 1, 2, 3, 4],
    ],
    "a name that is a property": [*class_token(DATACLASS, "natives", "Bare", "__class__"), INSTANCE, 0, 1],
    "the name of the dict itself": [*class_token(DATACLASS, "natives", "Bare", "__dict__"), INSTANCE, 0, DICT, 0],
    "a struct by its state": [*class_token(STATE, "natives", "Struct", "a", "b"), INSTANCE, 0, 1, 2, NONE],
    "a namedtuple by its state": [*class_token(STATE, "natives", "Pair"), INSTANCE, 0, NONE],
    "an enum by its state": [*class_token(STATE, "natives", "Color"), INSTANCE, 0, NONE],
    "a member of no flag by value": [*class_token(ENUM, "natives", "Color"), MEMBER, 0, 1],
    "a member of a flag that is none": [*class_token(ENUM, "natives", "Permission"), MEMBER, 0, INT32, 0, 0, 0, 1],
}


@pytest.mark.parametrize("name", STATES_REFUSED)
def test_a_state_that_does_not_fit_its_class_is_refused(name):
    with pytest.raises((ringcast.ProtocolError, ImportError), match="the frame "):
        unpack(STATES_REFUSED[name])


def test_states_by_hand_are_otherwise_good():
    got = unpack([*SLOTS, INSTANCE, 0, 1, ABSENT, 3, NONE])
    assert (got.a, got._SlotsAlone__private, hasattr(got, "b")) == (1, 3, False)
    assert vars(unpack([*FREE, INSTANCE, 0, NONE])) == {}
    assert vars(unpack([*FREE, INSTANCE, 0, DICT, 2, 0x81, 0x61, 1, 5, 6])) == {"a": 1, 5: 6}
    assert vars(unpack([*class_token(DATACLASS, "natives", "Plain", "b", "a"), INSTANCE, 0, 1, 2])) == {"b": 1, "a": 2}
    assert unpack([*class_token(ENUM, "natives", "Bits"), MEMBER, 0, 3]) is natives.Bits.A | natives.Bits.B
