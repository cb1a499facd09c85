"""What is said about a GPU before anything runs there. No GPU is needed for that."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.checkpoints import make_tiny_checkpoint
from worker.engine.device import (
    DeviceError,
    GpuState,
    check_memory,
    choose_device,
    crowding,
    kv_bytes,
    lack_of_memory,
    objection,
    read_state,
)
from worker.engine.parts import num_kv_blocks
from worker.engine.settings import EngineSettings
from worker.model.config import CheckpointError, read_config

GIB = 1 << 30
SOUND = GpuState(
    name="NVIDIA H200",
    capability=(9, 0),
    driver_cuda=(13, 0),
    ptxas=(13, 4),
    free_bytes=139 * GIB,
    total_bytes=140 * GIB,
)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"capability": (7, 5), "name": "Tesla T4"}, ("Tesla T4", "7.5", "8.0")),
        ({"driver_cuda": (12, 8)}, ("driver", "12.8", "13.4", "TRITON_PTXAS_PATH")),
    ],
    ids=["too old a GPU", "too old a driver"],
)
def test_a_gpu_that_cannot_serve_is_told_in_one_line(change: dict[str, object], words: tuple[str, ...]) -> None:
    said = objection(replace(SOUND, **change))  # type: ignore[arg-type]
    assert said is not None and "\n" not in said
    assert all(word in said for word in words)


@pytest.mark.parametrize(
    "change", [{}, {"capability": (8, 0)}, {"driver_cuda": (13, 4)}, {"ptxas": (12, 8), "driver_cuda": (12, 4)}]
)
def test_a_gpu_that_can_serve_is_taken(change: dict[str, object]) -> None:
    assert objection(replace(SOUND, **change)) is None  # type: ignore[arg-type]


def test_without_triton_the_drivers_age_does_not_matter() -> None:
    assert objection(replace(SOUND, ptxas=None, driver_cuda=(12, 0))) is None


def test_another_process_on_the_gpu_is_told() -> None:
    assert crowding(SOUND) is None
    said = crowding(replace(SOUND, free_bytes=40 * GIB))
    assert said == "other processes hold 100.0 of the 140.0 GiB of NVIDIA H200"


def test_weights_that_do_not_fit_are_told_with_who_is_in_the_way() -> None:
    assert lack_of_memory(SOUND, 16 * GIB) is None
    alone = lack_of_memory(SOUND, 141 * GIB)
    assert alone == "its weights take 141.0 GiB, 139.0 GiB of the GPU are free"
    crowded = lack_of_memory(replace(SOUND, free_bytes=10 * GIB), 16 * GIB)
    assert crowded is not None and "10.0 GiB" in crowded and "other processes hold 130.0" in crowded


def test_a_sound_gpu_computes_where_it_may() -> None:
    assert [choose_device(wanted, find=lambda: SOUND) for wanted in ("auto", "cuda", "cpu")] == ["cuda", "cuda", "cpu"]


def test_a_gpu_that_cannot_serve_ends_the_start_where_it_was_wanted(caplog: pytest.LogCaptureFixture) -> None:
    old = replace(SOUND, capability=(7, 5), name="Tesla T4")
    with pytest.raises(DeviceError, match=r"^--device cuda: Tesla T4 is of compute capability 7.5"):
        choose_device("cuda", find=lambda: old)
    assert choose_device("auto", find=lambda: old) == "cpu"
    assert [record.getMessage() for record in caplog.records] == [
        "the CPU computes, not the GPU: Tesla T4 is of compute capability 7.5, at least 8.0 is needed"
    ]


def test_a_gpu_that_another_process_has_alone_ends_the_start() -> None:
    def refuse() -> tuple[int, int]:
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nCompile with ...")

    for wanted in ("auto", "cuda"):
        with pytest.raises(DeviceError, match=r"^the GPU cannot be used: CUDA error: .* unavailable Compile with"):
            choose_device(wanted, find=lambda: read_state(memory=refuse))  # type: ignore[arg-type]


def test_memory_is_held_against_the_weights_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    check_memory(SOUND, 16 * GIB)
    assert not caplog.records
    crowded = replace(SOUND, free_bytes=40 * GIB)
    check_memory(crowded, 16 * GIB)
    assert [record.getMessage() for record in caplog.records] == [crowding(crowded)]
    with pytest.raises(DeviceError, match=r"its weights take 50.0 GiB, 40.0 GiB of the GPU are free: other processes"):
        check_memory(crowded, 50 * GIB)


def test_the_cache_takes_what_the_weights_leave_less_a_tenth(tmp_path: Path) -> None:
    settings = EngineSettings(model_path=tmp_path)
    assert kv_bytes(settings, replace(SOUND, free_bytes=100 * GIB), window_bytes=1) == 86 * GIB
    assert kv_bytes(settings, replace(SOUND, free_bytes=10 * GIB), window_bytes=1) == 0


def test_no_room_for_a_window_of_the_cache_is_told_in_one_line(tmp_path: Path) -> None:
    settings = EngineSettings(model_path=make_tiny_checkpoint(tmp_path / "model"), max_num_seqs=4)
    config = read_config(settings.model_path)
    assert num_kv_blocks(settings, config, torch.bfloat16, 512, SOUND) == 4 * 32
    with pytest.raises(CheckpointError, match="a window of 512 tokens needs 32 KV blocks, there is room for 0"):
        num_kv_blocks(settings, config, torch.bfloat16, 512, replace(SOUND, free_bytes=14 * GIB))
