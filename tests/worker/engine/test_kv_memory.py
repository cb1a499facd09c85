"""How much the KV cache takes where nobody said it."""

from worker.engine.kv_memory import available_bytes, default_bytes

GIB = 1 << 30


def test_a_fourth_of_all_full_windows() -> None:
    assert default_bytes(8 << 20, num_seqs=64, available_bytes=16 * GIB) == 128 << 20


def test_a_fourth_of_what_is_available_and_never_more_than_4_gib() -> None:
    assert default_bytes(GIB, num_seqs=64, available_bytes=8 * GIB) == 2 * GIB
    assert default_bytes(GIB, num_seqs=64, available_bytes=999 * GIB) == 4 * GIB


def test_one_window_fits_where_it_can() -> None:
    assert default_bytes(6 * GIB, num_seqs=2, available_bytes=16 * GIB) == 6 * GIB
    assert default_bytes(6 * GIB, num_seqs=2, available_bytes=8 * GIB) == 4 * GIB, "which the start then refuses"


def test_the_machine_says_what_is_available() -> None:
    assert 1 << 20 < available_bytes() < 1 << 50
