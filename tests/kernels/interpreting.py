"""Triton's interpreter for kernels that were compiled, with its faults mended.

The interpreter (3.6 to 3.9) keeps bfloat16 as uint16 and multiplies the bit patterns, cuts float32 off to bfloat16
instead of rounding, and on numpy >= 2.4 takes no loaded number as a loop's bound. Arithmetic on bfloat16 other than
products of matrices is refused, so is a product that a GPU would compute in TF32.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

_Builder, _Handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
_HALF = tl.bfloat16


def interpret(kernel: JITFunction, grid: tuple[int, int, int], args: Sequence[Any]) -> None:
    """Run the kernel's programs one after the other on CPU tensors; args as they are bound, constants too."""
    function = _rewritten(kernel.fn)
    values = [arg if is_constant else interpreter._implicit_cvt(arg) for arg, is_constant in _bound(kernel, args)]
    builder = interpreter.interpreter_builder
    with _patched(), np.errstate(all="ignore"), warnings.catch_warnings():
        # A GPU overflows, and takes the largest of nothing but NaN, without a word.
        warnings.simplefilter("ignore", RuntimeWarning)
        builder.set_grid_dim(*grid)
        for x in range(grid[0]):
            for y in range(grid[1]):
                for z in range(grid[2]):
                    builder.set_grid_idx(x, y, z)
                    function(*values)


def _bound(kernel: JITFunction, args: Sequence[Any]) -> Iterator[tuple[Any, bool]]:
    return zip(args, (param.is_constexpr for param in kernel.params), strict=True)


@cache
def _rewritten(function: Callable[..., None]) -> Callable[..., None]:
    # Under its own scope: to rewrite a function is to define it anew among its module's names.
    rewritten: Callable[..., None] = interpreter.FunctionRewriter(function).rewrite_ast()
    return rewritten


@contextmanager
def _patched() -> Iterator[None]:
    """triton.language computes, a jitted function called by a kernel is interpreted, too, and the faults are mended."""
    called, changes = JITFunction.__call__, _mends()
    scope = interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    # Checks of every sum for overflow take half of the time; an address that wrapped around is found as such.
    scope.set_attr(interpreter.interpreter_builder, "options", interpreter.InterpreterOptions(sanitize_overflow=False))
    scope.set_attr(tl.tensor, "__index__", lambda self: int(self.handle.data.reshape(-1)[0]))
    JITFunction.__call__ = lambda self, *args, **kwargs: _rewritten(self.fn)(*args, **kwargs)
    before = {name: getattr(_Builder, name) for name in changes}
    try:
        for name, change in changes.items():
            setattr(_Builder, name, change)
        yield
    finally:
        for name, original in before.items():
            setattr(_Builder, name, original)
        JITFunction.__call__ = called
        scope.restore()


@cache
def _mends() -> dict[str, Callable[..., Any]]:
    cast, binary = _Builder.cast_impl, _Builder.binary_op
    to_fp = _Builder.create_fp_to_fp

    def create_dot(self: Any, a: Any, b: Any, acc: Any, precision: Any, *rest: Any) -> Any:
        if a.dtype.scalar == tl.float32 and "IEEE" not in str(precision):
            raise ValueError('tl.dot of float32 without input_precision="ieee" is TF32 on a GPU')
        a_wide, b_wide = _widened(a), _widened(b)
        # In double precision: of float32 products BLAS gives a row other bits at another place of the matrix.
        sums = a_wide.data.astype(np.float64) @ b_wide.data.astype(np.float64) + acc.data
        return _Handle(sums.astype(acc.data.dtype), acc.dtype.scalar)

    def cast_impl(self: Any, value: Any, to: Any) -> Any:
        if value.dtype.scalar == _HALF:
            wide = _widened(value)
            return wide if to.scalar == tl.float32 else cast(self, wide, to)
        if to.scalar == _HALF:
            return _rounded(value if value.dtype.scalar == tl.float32 else cast(self, value, tl.float32))
        return cast(self, value, to)

    def create_fp_to_fp(self: Any, value: Any, to: Any, mode: Any) -> Any:
        is_half = _HALF in (value.dtype.scalar, to.scalar)
        return cast_impl(self, value, to) if is_half else to_fp(self, value, to, mode)

    def binary_op(self: Any, left: Any, right: Any, op: Any) -> Any:
        if left.dtype.scalar == _HALF:
            raise NotImplementedError("bfloat16 arithmetic is not interpreted; convert to float32")
        return binary(self, left, right, op)

    casts = dict.fromkeys(("cast_impl", "create_fp_ext", "create_fp_trunc"), cast_impl)
    return {**casts, "create_dot": create_dot, "create_fp_to_fp": create_fp_to_fp, "binary_op": binary_op}


def _widened(value: Any) -> Any:
    if value.dtype.scalar != _HALF:
        return value
    return _Handle((value.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def _rounded(value: Any) -> Any:
    """To the nearest, ties to even."""
    bits = np.ascontiguousarray(value.data, dtype=np.float32).view(np.uint32).astype(np.uint64)
    nearest = (bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1)) >> np.uint64(16)).astype(np.uint16)
    return _Handle(np.where(np.isnan(value.data), np.uint16(0x7FC0), nearest), _HALF)
