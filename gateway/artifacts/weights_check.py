"""Checks `adapter_model.safetensors` as it streams in: header, tensor shapes, and that all numbers are finite.

Only the header and a few bytes are kept, so that a file of gigabytes costs a megabyte. Torch is not needed: the bits of
a number tell whether it is finite.
"""

import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
import numpy as np

from gateway.artifacts.layout import ATTENTION, PROJECTIONS, Layout
from gateway.artifacts.refusal import BadAdapter
from protocol.artifacts import WEIGHTS_FILE
from protocol.peft_config import LoraConfig

MAX_HEADER_BYTES = 8 << 20
MAX_TENSORS = 20_000
MAX_MAGNITUDE = 65504.0
"""The largest float16, since a worker may compute in float16. Weights are usually a thousandth of this."""
_SIZES = {"F32": 4, "F16": 2, "BF16": 2}
_INFINITE = {"F32": 0x7F800000, "F16": 0x7C00, "BF16": 0x7F80}
"""The bits of infinity; those of NaN are larger."""
_KEY = re.compile(
    r"base_model\.model\.model\.layers\.(?P<layer>\d{1,6})\.(?P<block>self_attn|mlp)\.(?P<projection>\w+)"
    r"\.lora_(?P<side>[AB])\.weight"
)
_MAGIC = {
    b"PK": "a zip archive, as torch.save writes: pickles run code when they are read, and are not read here",
    b"\x80": "a pickle, which runs code when it is read, and is not read here",
    b"\x1f\x8b": "compressed by gzip",
}
_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class _Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: Literal["F32", "F16", "BF16"]
    shape: tuple[_Natural, _Natural]
    data_offsets: tuple[_Natural, _Natural]


@dataclass(slots=True)
class _Stretch:
    """One tensor's bytes, of which num_left are still to come."""

    key: str
    side: str
    dtype: Literal["F32", "F16", "BF16"]
    num_left: int


@dataclass(slots=True)
class WeightsCheck:
    """`feed` takes the file in order, `finish` returns its layout. Both raise BadAdapter."""

    config: LoraConfig
    max_bytes: int
    _head: bytearray = field(default_factory=bytearray)
    _stretches: list[_Stretch] = field(default_factory=list)
    """The tensors that are not read yet, the next one last."""
    _layout: Layout | None = None
    _rest: bytes = b""
    """The beginning of a number that is split between two blocks."""

    def feed(self, block: bytes | memoryview) -> None:
        view = memoryview(block)
        if self._layout is None:
            view = self._feed_head(view)
        while len(view):
            if not self._stretches:
                raise _refusal("it goes on after its last tensor")
            stretch = self._stretches[-1]
            taken = view[: stretch.num_left]
            view = view[len(taken) :]
            stretch.num_left -= len(taken)
            self._check_numbers(stretch, taken)
            if stretch.num_left == 0:
                self._stretches.pop()

    def finish(self) -> Layout:
        if self._layout is None or self._stretches:
            raise _refusal("it ends before its last tensor does; it was cut")
        return self._layout

    def _feed_head(self, view: memoryview) -> memoryview:
        """Take the header from `view`, and return the part that follows it."""
        num_wanted = 9 - len(self._head)
        if num_wanted > 0:
            self._head += view[:num_wanted]
            view = view[num_wanted:]
            if len(self._head) < 9:
                return view
        num_header = int.from_bytes(self._head[:8], "little")
        if not 2 <= num_header <= MAX_HEADER_BYTES or self._head[8:9] != b"{":
            raise _refusal(_what_it_is(bytes(self._head)))
        num_wanted = 8 + num_header - len(self._head)
        self._head += view[:num_wanted]
        view = view[num_wanted:]
        if len(self._head) == 8 + num_header:
            self._read_header(bytes(self._head[8:]))
            self._head.clear()
        return view

    def _read_header(self, header: bytes) -> None:
        try:
            entries = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
            if "__metadata__" in entries:
                msgspec.json.decode(entries.pop("__metadata__"), type=dict[str, str])
            if not 1 <= len(entries) <= MAX_TENSORS:
                raise _refusal(f"it holds {len(entries)} tensors; there must be 1 to {MAX_TENSORS}")
            tensors = {key: _decode(key, entry) for key, entry in entries.items()}
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise _refusal(f"its header cannot be read: {error}") from error
        self._layout = _read_layout(tensors, self.config)
        self._stretches = _stretches(tensors, room=self.max_bytes - 8 - len(header))

    def _check_numbers(self, stretch: _Stretch, taken: memoryview) -> None:
        size = _SIZES[stretch.dtype]
        if self._rest:
            num_missing = size - len(self._rest)
            number, taken = self._rest + bytes(taken[:num_missing]), taken[num_missing:]
            if len(number) < size:
                self._rest = number
                return
            self._rest = b""
            self._check_bits(stretch, number)
        num_whole = len(taken) // size * size
        self._rest = bytes(taken[num_whole:])
        if num_whole:
            self._check_bits(stretch, taken[:num_whole])

    def _check_bits(self, stretch: _Stretch, numbers: bytes | memoryview) -> None:
        """numbers: complete ones, at least one."""
        largest = _largest(numbers, stretch.dtype)
        if largest >= _INFINITE[stretch.dtype]:
            raise _refusal(f"{stretch.key}: not all numbers are finite (NaN or infinite)")
        scaling = max(1.0, abs(self.config.scaling)) if stretch.side == "B" else 1.0
        magnitude = scaling * _as_float(largest, stretch.dtype)
        if magnitude > MAX_MAGNITUDE:
            raise _refusal(
                f"{stretch.key}: a number of {magnitude:.6g} (scaled) is beyond {MAX_MAGNITUDE:g}, float16's largest"
            )


def _largest(numbers: bytes | memoryview, dtype: str) -> int:
    """The bits of the number farthest from zero, without its sign."""
    if dtype == "F32":
        return int((np.frombuffer(numbers, np.uint32) & np.uint32(0x7FFFFFFF)).max())
    return int((np.frombuffer(numbers, np.uint16) & np.uint16(0x7FFF)).max())


def _as_float(bits: int, dtype: str) -> float:
    if dtype == "F16":
        return float(np.array([bits], np.uint16).view(np.float16)[0])
    return float(np.array([bits << 16 if dtype == "BF16" else bits], np.uint32).view(np.float32)[0])


def _what_it_is(head: bytes) -> str:
    found = next((what for magic, what in _MAGIC.items() if head.startswith(magic)), None)
    return f"this is no safetensors file but {found}" if found else "this is no safetensors file"


def _decode(key: str, entry: msgspec.Raw) -> _Tensor:
    try:
        return msgspec.json.decode(entry, type=_Tensor)
    except msgspec.MsgspecError as error:
        raise _refusal(f"the tensor {key[:200]!r}: {error}; matrices of F32, F16 or BF16 can be served") from error


def _read_layout(tensors: dict[str, _Tensor], config: LoraConfig) -> Layout:
    pairs: dict[tuple[int, str], dict[str, tuple[int, int]]] = {}
    for key, tensor in tensors.items():
        match = _KEY.fullmatch(key)
        if match is None or match["projection"] not in PROJECTIONS:
            raise _refusal(
                f"the tensor {key[:200]!r} cannot be served; adapt {', '.join(PROJECTIONS)} of the layers only"
            )
        if (match["projection"] in ATTENTION) != (match["block"] == "self_attn"):
            raise _refusal(f"the tensor {key[:200]!r} stands in the wrong block of its layer")
        pairs.setdefault((int(match["layer"]), match["projection"]), {})[match["side"]] = tensor.shape
    shapes: dict[str, tuple[int, int]] = {}
    for (layer, projection), sides in sorted(pairs.items()):
        where = f"layer {layer} {projection}"
        if len(sides) < 2:
            raise _refusal(f"{where}: lora_{'B' if 'A' in sides else 'A'} is missing")
        (rank, inner), (out, rank_of_b) = sides["A"], sides["B"]
        if not rank == rank_of_b == config.rank or not inner or not out:
            raise _refusal(
                f"{where}: lora_A is {rank} x {inner} and lora_B {out} x {rank_of_b}; with r {config.rank} they must "
                f"be {config.rank} x in and out x {config.rank}"
            )
        if shapes.setdefault(projection, (out, inner)) != (out, inner):
            raise _refusal(f"{where}: {out} x {inner}, in another layer {' x '.join(map(str, shapes[projection]))}")
    return Layout(config.rank, 1 + max(layer for layer, _ in pairs), shapes)


def _stretches(tensors: dict[str, _Tensor], *, room: int) -> list[_Stretch]:
    """In reverse order. Raises BadAdapter unless the tensors lie one after the other, as in every safetensors file, and
    fit into `room` bytes."""
    stretches, end = [], 0
    for key, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        begin, next_end = tensor.data_offsets
        size = tensor.shape[0] * tensor.shape[1] * _SIZES[tensor.dtype]
        if begin != end or next_end - begin != size:
            raise _refusal(f"the tensor {key[:200]!r} does not lie where its shape and its neighbours' say")
        end = next_end
        match = _KEY.fullmatch(key)
        assert match is not None
        stretches.append(_Stretch(key, match["side"], tensor.dtype, size))
    if end > room:
        raise _refusal(f"it announces {end} bytes of tensors, more than an adapter may have")
    return stretches[::-1]


def _refusal(reason: str) -> BadAdapter:
    return BadAdapter(f"{WEIGHTS_FILE}: {reason}"[:600], param="weights")
