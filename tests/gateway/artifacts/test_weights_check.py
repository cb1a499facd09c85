"""The check of weights, against the library that reads them later, and against whatever a client may send."""

import contextlib
import gzip
import io
import math
import pickle
import zipfile
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from gateway.artifacts.layout import Layout, misfit
from gateway.artifacts.refusal import BadAdapter
from gateway.artifacts.weights_check import WeightsCheck
from protocol.load import AdapterBase
from protocol.peft_config import LoraConfig
from tests.support.adapter_files import PREFIX, tensors, weights_bytes

CONFIG = LoraConfig(rank=4, scaling=2.0)
FIRST = f"{PREFIX}.0.self_attn.q_proj.lora_A.weight"


def check(content: bytes, *, block: int = 1 << 20, config: LoraConfig = CONFIG, max_bytes: int = 1 << 30) -> Layout:
    checking = WeightsCheck(config, max_bytes=max_bytes)
    for start in range(0, len(content), block):
        checking.feed(content[start : start + block])
    return checking.finish()


def reason(content: bytes, **options: Any) -> str:
    with pytest.raises(BadAdapter) as caught:
        check(content, **options)
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("block", [1, 3, 1000, 1 << 20])
def test_what_the_library_writes_is_taken_in_any_blocks(dtype: torch.dtype, block: int) -> None:
    content = save({key: torch.tensor(matrix).to(dtype) for key, matrix in tensors().items()}, {"format": "pt"})
    assert check(content, block=block) == Layout(4, 2, {"q_proj": (64, 64)})


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("key", [FIRST, f"{PREFIX}.1.self_attn.q_proj.lora_B.weight"])
def test_a_number_that_is_not_finite_is_found_wherever_it_stands(dtype: str, bad: float, key: str) -> None:
    matrices = tensors()
    for place in (0, 77, -1):
        changed = {name: matrix.copy() for name, matrix in matrices.items()}
        changed[key].flat[place] = bad
        assert f"{key}: not all numbers are finite" in reason(weights_bytes(changed, dtype=dtype), block=999)


def test_a_number_that_float16_cannot_hold_is_refused_scaled_or_not() -> None:
    matrices = tensors()
    matrices[FIRST][0, 0] = 65504
    check(weights_bytes(matrices))
    matrices[FIRST][0, 0] = 70000
    assert "beyond 65504" in reason(weights_bytes(matrices))
    matrices = tensors()
    matrices[FIRST.replace("lora_A", "lora_B")][0, 0] = 40000
    assert "80000" in reason(weights_bytes(matrices))


def zip_archive() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.pkl", b"\0" * (50 << 20))
    return content.getvalue()


class Bomb:
    """Run by a pickle's reader."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('a pickle was read')",)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "it was cut"),
        (b"\x05", "it was cut"),
        (b"hello, this is text", "no safetensors file"),
        (pickle.dumps(Bomb()), "a pickle, which runs code"),
        (zip_archive(), "a zip archive, as torch.save writes"),
        (gzip.compress(bytes(1000), mtime=0), "compressed by gzip"),
        ((1 << 40).to_bytes(8, "little") + b"{", "no safetensors file"),
        ((9).to_bytes(8, "little") + b"[1, 2, 3]", "no safetensors file"),
        ((2).to_bytes(8, "little") + b"{}", "it holds 0 tensors"),
        ((4).to_bytes(8, "little") + b'{"a\xff', "header cannot be read"),
        ((200_000).to_bytes(8, "little") + b'{"__metadata__":' + b"[" * 199_984, "header cannot be read"),
    ],
)
def test_what_is_no_safetensors_file_is_told_from_its_first_bytes(content: bytes, expected: str) -> None:
    assert expected in reason(content)


def set_field(name: str, value: object) -> Any:
    return lambda header: header[FIRST].__setitem__(name, value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (set_field("dtype", "F64"), "F32, F16 or BF16 can be served"),
        (set_field("dtype", "I64"), "F32, F16 or BF16 can be served"),
        (set_field("shape", [4, 63]), "in another layer"),
        (set_field("shape", [4, 64, 1]), "can be served"),
        (set_field("shape", [2**52, 2**52]), "they must be 4 x in"),
        (set_field("shape", [-4, -64]), "can be served"),
        (set_field("data_offsets", [0, 10]), "does not lie where its shape"),
        (set_field("data_offsets", [1024, 0]), "does not lie where its shape"),
        (set_field("data_offsets", [8, 1032]), "does not lie where its shape"),
        (set_field("data_offsets", [True, 1024]), "can be served"),
        (set_field("more", 1), "can be served"),
        (lambda header: header.pop(FIRST), "lora_A is missing"),
        (lambda header: header.__setitem__("__metadata__", {"a": 1}), "header cannot be read"),
        (lambda header: header.__setitem__(FIRST.replace("A.w", "C.w"), header[FIRST]), "cannot be served"),
        (lambda header: header.__setitem__("base_model.model.lm_head.lora_A.weight", header[FIRST]), "lm_head"),
        (lambda header: header.__setitem__(FIRST.replace("self_attn", "mlp"), header[FIRST]), "in the wrong block"),
        (lambda header: header.__setitem__(FIRST.replace("q_proj", "qkv_proj"), header[FIRST]), "cannot be served"),
        (lambda header: header.__setitem__(f"{FIRST}.magnitude", header[FIRST]), "cannot be served"),
        (lambda header: header.__setitem__(FIRST.replace(".0.", ".9999999."), header[FIRST]), "cannot be served"),
    ],
)
def test_a_header_that_lies_or_holds_what_we_cannot_serve_is_refused(change: Any, expected: str) -> None:
    assert expected in reason(weights_bytes(tensors(), change=change))


def test_two_tensors_may_not_share_bytes() -> None:
    def share(header: dict[str, Any]) -> None:
        header[FIRST.replace("lora_A", "lora_B")]["data_offsets"] = header[FIRST]["data_offsets"]

    assert "does not lie where" in reason(weights_bytes(tensors(layers=1), change=share))


def test_a_file_that_is_cut_or_goes_on_is_refused() -> None:
    content = weights_bytes(tensors())
    for end in (4, 8, 100, len(content) - 1024, len(content) - 1):
        assert "it was cut" in reason(content[:end])
    assert "goes on after its last tensor" in reason(content + b"\0")


def test_the_bound_holds_for_what_the_header_announces() -> None:
    content = weights_bytes(tensors())
    check(content, max_bytes=len(content))
    assert "more than an adapter may have" in reason(content, max_bytes=len(content) - 1)


@pytest.mark.parametrize("rank", [2, 8])
def test_another_rank_than_the_configs_is_refused(rank: int) -> None:
    assert "with r 4" in reason(weights_bytes(tensors(rank=rank)))


def test_a_projection_has_one_shape_in_all_layers() -> None:
    matrices = tensors()
    matrices[f"{PREFIX}.1.self_attn.q_proj.lora_A.weight"] = np.zeros((4, 32), np.float32)
    assert "in another layer" in reason(weights_bytes(matrices))


@given(content=st.binary(max_size=400), is_framed=st.booleans(), block=st.integers(1, 50))
def test_any_bytes_are_refused_and_nothing_else_happens(content: bytes, *, is_framed: bool, block: int) -> None:
    framed = len(content).to_bytes(8, "little") + content if is_framed else content
    reason(framed, block=block)


@given(data=st.data())
def test_one_changed_byte_of_the_header_is_refused_or_changes_nothing(data: st.DataObject) -> None:
    content = bytearray(weights_bytes(tensors(layers=1, size=8)))
    end = 8 + int.from_bytes(content[:8], "little")
    content[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BadAdapter):
        # A byte of the metadata.
        assert check(bytes(content)) == Layout(4, 1, {"q_proj": (8, 8)})


BASE = AdapterBase(num_layers=2, shapes={"q_proj": (64, 64), "k_proj": (32, 64)}, max_rank=8)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (Layout(8, 2, {"q_proj": (64, 64)}), None),
        (Layout(9, 2, {"q_proj": (64, 64)}), "its rank is 9"),
        (Layout(8, 3, {"q_proj": (64, 64)}), "a tensor for layer 2"),
        (Layout(8, 2, {"q_proj": (64, 64), "k_proj": (64, 64)}), "for a k_proj of 64 x 64, that of 'm' is 32 x 64"),
        (Layout(8, 2, {"up_proj": (64, 64)}), "does not have"),
    ],
)
def test_an_adapter_fits_its_base_model_or_the_reason_is_told(layout: Layout, expected: str | None) -> None:
    told = misfit(layout, BASE, model_id="m")
    assert told == expected if expected is None else expected in str(told)
