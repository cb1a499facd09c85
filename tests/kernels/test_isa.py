"""Which instructions the kernels use."""

import logging
from pathlib import Path

import pytest

from kernels.native.build import build_first
from kernels.native.isa import (
    EMULATED,
    TARGETS,
    NoKernels,
    TilesRefused,
    WrongInstructions,
    choose,
    flags,
    instruction_sets,
    request_tiles,
)

NONE: dict[str, object] = {}
AVX2, AVX512, AMX = (
    {feature: True for name in names for feature in TARGETS[name].features}
    for names in (["avx2"], ["avx2", "avx512"], ["avx2", "avx512", "amx"])
)


def permit() -> None:
    pass


def refuse() -> None:
    raise TilesRefused("the system refuses it")


def must_not_ask() -> None:
    raise AssertionError("asked for tiles that nobody wants")


@pytest.mark.parametrize(
    ("capabilities", "found"),
    [(AVX2, ("avx2",)), (AVX512, ("avx512", "avx2")), (AMX, ("amx", "avx512", "avx2"))],
)
def test_the_best_that_the_processor_has_comes_first(
    capabilities: dict[str, object], found: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    assert choose(None, capabilities, permit) == choose("", capabilities, permit) == found
    assert not caplog.records


@pytest.mark.parametrize("missing", ["amx_tile", "amx_bf16"])
def test_half_of_amx_is_none(missing: str) -> None:
    assert choose(None, AMX | {missing: False}, must_not_ask) == ("avx512", "avx2")


def test_where_the_system_refuses_tiles_one_line_tells_and_avx512_is_used(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tiergate.kernels"):
        assert choose(None, AMX, refuse) == ("avx512", "avx2")
    assert [record.getMessage() for record in caplog.records] == [
        "the processor has AMX, but the system refuses it: the kernels for AVX-512 are used"
    ]


def test_each_may_be_chosen_on_a_processor_that_has_all() -> None:
    for wanted in ("avx2", "avx512"):
        assert choose(wanted, AMX, must_not_ask) == (wanted,)
    assert choose("amx", AMX, permit) == ("amx",)


@pytest.mark.parametrize(
    ("wanted", "capabilities", "reason"),
    [
        ("sse9", AMX, "'sse9' is none of amx, avx512, avx2"),
        ("amx", AVX512, "this processor has no amx; unset it for the best there is"),
        ("avx512", AVX2, "this processor has no avx512; unset it for the best there is"),
        ("amx", AMX, "no amx: the system refuses it"),
    ],
)
def test_what_cannot_be_had_stops_the_start_by_name(wanted: str, capabilities: dict[str, object], reason: str) -> None:
    with pytest.raises(WrongInstructions, match=f"^TIERGATE_KERNELS_ISA: {reason}$"):
        choose(wanted, capabilities, refuse)


def test_emulated_tiles_are_had_by_name_alone() -> None:
    assert choose(EMULATED, AVX2, must_not_ask) == (EMULATED,)
    assert EMULATED not in choose(None, AMX, permit)
    with pytest.raises(WrongInstructions):
        choose(EMULATED, NONE, permit)


def test_a_processor_without_any_has_no_kernels() -> None:
    with pytest.raises(NoKernels):
        choose(None, NONE, permit)


def test_the_variable_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERGATE_KERNELS_ISA", "sse9")
    with pytest.raises(WrongInstructions, match="sse9"):
        instruction_sets()


def test_this_system_is_asked_for_tiles_and_answers() -> None:
    # Where the processor has none, no system has any to give; where it has, Linux gives them.
    has_tiles = "amx_tile" in Path("/proc/cpuinfo").read_text()
    try:
        request_tiles()
    except TilesRefused as reason:
        assert not has_tiles, reason
    else:
        assert has_tiles


def test_what_the_compiler_does_not_know_gives_way_to_the_next_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = tmp_path / "old-c++"
    compiler.write_text(
        "#!/bin/sh\n"
        'case "$*" in *-mamx-tile*) echo "error: unrecognized option -mamx-tile" >&2; exit 1;; esac\n'
        'while [ "$1" != -o ]; do shift; done; : > "$2"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", str(compiler))
    with caplog.at_level(logging.WARNING, "tiergate.kernels"):
        built = build_first(("amx", "avx512", "avx2"))
    assert built.isa == "avx512" and built.path.exists()
    (record,) = caplog.records
    assert "no kernels for amx" in record.getMessage() and "unrecognized option" in record.getMessage()


def test_each_build_has_flags_of_its_own() -> None:
    assert len({flags(isa) for isa in (*TARGETS, EMULATED)}) == len(TARGETS) + 1
