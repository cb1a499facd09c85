"""The stand-in Hopper, for tests that ask for it."""

from collections.abc import Iterator

import pytest

from tests.kernels.hopper import Hopper, on_hopper


@pytest.fixture
def hopper() -> Iterator[Hopper]:
    with on_hopper() as stand_in:
        yield stand_in
