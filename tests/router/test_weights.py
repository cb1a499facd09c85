import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.complexity import shipped_weights
from router.errors import BadWeights
from router.features import NAMES
from router.weights import VERSION, pack_weights, read_weights

SHIPPED = pack_weights(shipped_weights().content)


@given(st.integers(0, len(SHIPPED) - 1))
def test_a_truncated_file_is_refused(size: int) -> None:
    with pytest.raises(BadWeights):
        read_weights(SHIPPED[:size])


@given(st.integers(0, len(SHIPPED) - 1), st.integers(1, 255))
def test_a_damaged_file_is_refused(place: int, flip: int) -> None:
    with pytest.raises(BadWeights):
        read_weights(SHIPPED[:place] + bytes([SHIPPED[place] ^ flip]) + SHIPPED[place + 1 :])


def test_another_version_is_named() -> None:
    place = SHIPPED.index(b"\n") + 1
    other = SHIPPED[:place] + (VERSION + 1).to_bytes(2, "little") + SHIPPED[place + 2 :]
    with pytest.raises(BadWeights, match=f"version {VERSION + 1}, and this router reads version {VERSION}"):
        read_weights(other)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"feature_names": NAMES[1:]}, "other features"),
        ({"word_gains": b"\0" * 6}, "shape"),
        ({"linear": b"\xff" * 4 * len(NAMES)}, "not finite"),
        ({"depth": 9}, "depth 9"),
        ({"probabilities": (0.5, 0.4), "raw_knots": (0.0, 1.0)}, "does not rise"),
        ({"probabilities": (0.5, 1.4), "raw_knots": (0.0, 1.0)}, "from 0 to 1"),
        ({"quantiles": (0.5,)}, "quantiles"),
    ],
)
def test_what_does_not_fit_together_is_refused(change: dict[str, object], said: str) -> None:
    content = msgspec.structs.replace(shipped_weights().content, **change)
    with pytest.raises(BadWeights, match=said):
        read_weights(pack_weights(content))


def test_the_shipped_file_is_small_and_says_how_it_was_made() -> None:
    assert len(SHIPPED) < 2_000_000
    assert "RouteLLM" in shipped_weights().content.note


def test_a_larger_share_has_a_lower_threshold() -> None:
    shares = [share / 100 for share in range(101)]
    thresholds = [shipped_weights().threshold_for(share) for share in shares]
    assert thresholds == sorted(thresholds, reverse=True)
    assert (thresholds[0], thresholds[-1]) == (1.0, 0.0)
