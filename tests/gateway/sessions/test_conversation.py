from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sessions.conversation import Raw, role_of, split_system, split_turns
from gateway.sessions.packing import Unreadable, pack, unpack

ROLES = st.lists(st.sampled_from(["system", "developer", "user", "assistant", "tool"]), max_size=30)
KEY, OTHER_KEY = b"k" * 32, b"o" * 32


def messages_of(roles: list[str]) -> list[Raw]:
    return [Raw(msgspec.json.encode({"role": role, "content": str(i)})) for i, role in enumerate(roles)]


@given(ROLES)
def test_turns_are_the_conversation_and_begin_where_a_user_speaks(roles: list[str]) -> None:
    system, rest = split_system(messages_of(roles))
    turns = split_turns(rest)
    assert [*system, *(message for turn in turns for message in turn)] == messages_of(roles)
    for before, turn in pairwise(turns):
        assert role_of(turn[0]) == "user" and role_of(before[-1]) != "user"
    for turn in turns:
        # A user's word after anything else would have begun another.
        assert not any(role_of(b) == "user" and role_of(a) != "user" for a, b in pairwise(turn))


@pytest.mark.parametrize("key", [None, KEY])
def test_what_was_packed_is_read_again_in_its_place_alone(key: bytes | None) -> None:
    packed = pack(["a" * 10_000], key=key, place="here")
    assert len(packed) < 200
    assert unpack(packed, list[str], key=key, place="here") == ["a" * 10_000]
    broken = [(packed[:-1], KEY, "here"), (b"", KEY, "here"), (packed[:20] + b"x" + packed[21:], KEY, "here")]
    if key is not None:
        broken += [(packed, KEY, "there"), (packed, OTHER_KEY, "here"), (packed, None, "here")]
    for kept, other, place in broken:
        with pytest.raises(Unreadable):
            unpack(kept, list[int], key=other, place=place)
