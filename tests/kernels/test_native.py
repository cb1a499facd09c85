"""The C++ kernels against the torch paths that stand in for them, and their build."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import kernels.native
from kernels.native import library, mirrors, set_num_threads
from kernels.native.build import BuildError, build
from kernels.rms_norm import native as rms_norm_native
from kernels.rms_norm import reference as rms_norm_reference
from kernels.rope import native as rope_native
from kernels.rope import reference as rope_reference
from kernels.silu_mul import native as silu_mul_native
from kernels.silu_mul import reference as silu_mul_reference

pytestmark = pytest.mark.skipif(library() is None, reason="this machine has no AVX2 or no compiler")
DTYPES = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 40), (50, 768), (5, 4, 24)])
def test_rms_norm_is_that_of_torch(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    # Heads are a slice of the fused projection's output, so that rows are not dense.
    x = torch.randn(shape[0], 2 * torch.Size(shape[1:]).numel()).to(dtype)[:, : torch.Size(shape[1:]).numel()]
    x = x.view(shape) if len(shape) == 2 else x.unflatten(1, shape[1:])
    weight = torch.randn(shape[-1]).to(dtype)
    assert rms_norm_native.can_run(x, weight)
    got, expected = (path.rms_norm(x, weight, eps=1e-5) for path in (rms_norm_native, rms_norm_reference))
    # The mean's last bits may differ, and with them the rounding to a half type.
    torch.testing.assert_close(got, expected, rtol=4 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [6, 32, 80])
def test_rope_is_that_of_torch(dtype: torch.dtype, head_dim: int) -> None:
    wide = torch.randn(35, 7, head_dim).to(dtype)
    cos, sin = (torch.randn(35, 1, head_dim).to(dtype) for _ in range(2))
    expected = wide.clone()
    rope_reference.rope(expected[:, :5], cos, sin)
    assert rope_native.can_run(wide[:, :5], cos, sin)
    rope_native.rope(wide[:, :5], cos, sin)
    torch.testing.assert_close(wide, expected, rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 40, 2048])
def test_silu_mul_is_that_of_torch(dtype: torch.dtype, size: int) -> None:
    gate_up = torch.cat((torch.linspace(-120, 120, 17 * size).view(17, size), torch.randn(17, size)), 1).to(dtype)
    assert silu_mul_native.can_run(gate_up)
    expected = silu_mul_reference.silu_mul(gate_up)
    torch.testing.assert_close(silu_mul_native.silu_mul(gate_up), expected, rtol=4 * torch.finfo(dtype).eps, atol=1e-30)


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_of_what_is_far_from_nought_is_that_of_torch(dtype: torch.dtype) -> None:
    gate = torch.tensor([[1e4, 3e7, 1e30, -1e4, -3e7, -1e30, torch.inf, torch.nan]])
    gate_up = torch.cat((gate, torch.ones_like(gate)), dim=1).to(dtype)
    got, expected = silu_mul_native.silu_mul(gate_up), silu_mul_reference.silu_mul(gate_up)
    torch.testing.assert_close(got, expected, equal_nan=True)


def test_threads_change_no_bit() -> None:
    gate_up = torch.randn(300, 256)
    alone = silu_mul_native.silu_mul(gate_up)
    set_num_threads(4, torch.float32)
    try:
        for _ in range(200):
            assert torch.equal(silu_mul_native.silu_mul(gate_up), alone)
    finally:
        set_num_threads(1, torch.float32)


def test_every_chunk_is_worked_on_once(tmp_path: Path) -> None:
    # Late threads meet the next operation only where operations follow each other faster than Python calls them.
    source, program = Path(__file__).with_name("pool_rounds.cpp"), tmp_path / "pool_rounds"
    command = ["c++", "-std=c++20", "-O2", "-march=x86-64-v3", "-pthread", "-o", str(program), str(source)]
    subprocess.run(command, check=True, timeout=120)
    done = subprocess.run([program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "0\n"


def test_a_build_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = build().path
    made_at = path.stat().st_mtime_ns
    assert build().path == path and path.stat().st_mtime_ns == made_at
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert "run_layers" in subprocess.run(["nm", "-D", path], capture_output=True, text=True, check=True).stdout


def test_the_library_shows_nothing_but_what_python_calls() -> None:
    command = ["nm", "-D", "--defined-only", build().path]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1] for line in shown.splitlines()}
    assert {"layout", "run_layers", "add_lora"} <= names
    assert not [name for name in names if name.startswith("_Z")]


def test_a_struct_that_python_lays_out_otherwise_is_found_at_load() -> None:
    class Wrong(ctypes.Structure):
        _fields_ = (("a", ctypes.c_int32), ("b", ctypes.c_void_p))

    for name in ("AttentionShape", "LoraMatrix", "NoSuchStruct"):
        with pytest.raises(RuntimeError, match=f"Wrong is not laid out as the library's {name}"):
            mirrors(name)(Wrong)
        del kernels.native._structs[name]


def test_a_compiler_may_be_named_with_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "env LC_ALL=C c++")
    assert build().path.is_file()


def test_a_user_without_a_home_is_told_what_to_set() -> None:
    code = (
        "import os; from kernels.native.build import BuildError, build\n"
        "os.setuid(54321)\n"
        "try: build()\n"
        "except BuildError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], env={}, capture_output=True, text=True, check=False)
    if "PermissionError" in done.stderr:
        pytest.skip("only root can become a user without a home")
    assert done.stdout.rstrip().endswith("Set XDG_CACHE_HOME."), done.stderr


@pytest.mark.parametrize(("compiler", "reason"), [("/bin/false", "failed"), ("/no/such/compiler", "cannot run")])
def test_without_a_compiler_that_works_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, reason: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(BuildError, match=reason):
        build()
