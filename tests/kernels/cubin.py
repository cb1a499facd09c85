"""What ptxas made of a kernel: its registers, its memory, its instructions, and what speaks against running it."""

import json
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import triton
from triton.backends.nvidia.compiler import get_ptxas

ARCHITECTURE = "sm_90a"
SHARED_LIMIT = 227 * 1024
"""Bytes of shared memory that one block of a Hopper may have."""

_SHARED_OF_MULTIPROCESSOR, _SHARED_RESERVED, _SHARED_UNIT = 228 * 1024, 1024, 128
_REGISTERS, _REGISTER_UNIT = 65536, 256
_MAX_WARPS, _MAX_BLOCKS = 64, 32
# A line of the listing: "        /*0310*/              @!P0 LDG.E.128 R4, desc[UR8][R2.64] ;"
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]+)", re.MULTILINE)
_REGISTER_WGMMA = re.compile(r"wgmma\.mma_async[^\n{]*\{[^}]*\},\s*\{")


@dataclass(frozen=True)
class Cubin:
    """One specialisation of a kernel. sass: how often each instruction stands in the code."""

    name: str
    num_warps: int
    shared: int
    registers: int
    stack: int
    local: int
    sass: dict[str, int]
    num_register_wgmma: int
    complaints: list[str]

    def count(self, *prefixes: str) -> int:
        return sum(number for name, number in self.sass.items() if name.startswith(prefixes))

    @property
    def num_spills(self) -> int:
        return self.stack + self.local + self.count("LDL", "STL")

    @property
    def num_wide_loads(self) -> int:
        """Instructions that load 16 bytes a thread, into registers or shared memory."""
        return sum(number for name, number in self.sass.items() if re.match(r"LDG(STS)?\..*128", name))

    @property
    def blocks_per_multiprocessor(self) -> int:
        """Registers are given to warps in units of 256, shared memory to blocks with 1 KiB beside it."""
        by_warp = -(-self.registers * 32 // _REGISTER_UNIT) * _REGISTER_UNIT
        shared = -(-(self.shared + _SHARED_RESERVED) // _SHARED_UNIT) * _SHARED_UNIT
        return min(
            _REGISTERS // (by_warp * self.num_warps),
            _SHARED_OF_MULTIPROCESSOR // shared,
            _MAX_WARPS // self.num_warps,
            _MAX_BLOCKS,
        )

    @property
    def bytes_in_flight(self) -> int:
        """How many a multiprocessor can be waiting for: of copies into shared memory, or of loads into registers."""
        by_loads = 0
        for name, number in self.sass.items():
            if name.startswith("LDG.") and (width := re.search(r"\.(64|128)\b", name)):
                by_loads += number * int(width[1]) // 8 * 32 * self.num_warps
        return self.blocks_per_multiprocessor * max(self.shared, by_loads)

    def faults(self) -> list[str]:
        """What no kernel may have."""
        checks = (
            (self.num_spills, "registers spill"),
            (self.registers > 255, "too many registers"),
            (self.shared > SHARED_LIMIT, "too much shared memory"),
            (any("TF32" in name for name in self.sass), "float32 products in TF32"),
            (self.count("ATOM", "RED."), "atomics"),
            (self.complaints, f"ptxas complains: {self.complaints}"),
        )
        return [f"{self.name}: {fault} ({int(bool(value))})" for value, fault in checks if value]


def read_cubin(files: dict[str, str]) -> Cubin:
    """files: of a compiled kernel in Triton's cache, by name. What is read is kept beside them."""
    paths = {Path(path).suffix: Path(path) for path in files.values()}
    kept = paths[".cubin"].with_suffix(".inspected")
    if kept.exists():
        return Cubin(**json.loads(kept.read_text()))
    cubin = _inspect(paths)
    kept.write_text(json.dumps(asdict(cubin)))
    return cubin


def _inspect(paths: dict[str, Path]) -> Cubin:
    metadata = json.loads(paths[".json"].read_text())
    usage = _run(_tool("cuobjdump"), "-res-usage", str(paths[".cubin"]))
    sizes = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", usage)
    assert sizes, usage
    ptx = paths[".ptx"].read_text()
    return Cubin(
        name=metadata["name"],
        num_warps=metadata["num_warps"],
        shared=metadata["shared"],
        registers=int(sizes[1]),
        stack=int(sizes[2]),
        local=int(sizes[3]),
        sass=dict(Counter(_INSTRUCTION.findall(_run(_tool("nvdisasm"), "-c", str(paths[".cubin"]))))),
        num_register_wgmma=len(_REGISTER_WGMMA.findall(ptx)),
        complaints=_complaints(paths[".ptx"]),
    )


def _complaints(ptx: Path) -> list[str]:
    """Warnings, among them that wgmma instructions were serialised."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as out:
        said = _run(get_ptxas(90).path, "-v", f"--gpu-name={ARCHITECTURE}", str(ptx), "-o", out.name)
    return [line for line in said.splitlines() if re.search(r"warning|error|Potential|C75\d\d", line)]


def _tool(name: str) -> str:
    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name)


def _run(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return result.stdout + result.stderr
