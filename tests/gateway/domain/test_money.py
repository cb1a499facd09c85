"""Rounding, and that no float ever meets an amount."""

import ast
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gateway
from gateway.domain.money import dollars, share_of

_ROOT = Path(gateway.__file__).parent
_MONEY = ("domain/money.py", "domain/prices", "billing", "admin/prices.py")
"""Modules and folders on the way of an amount from a price to an invoice."""
_FORBIDDEN_CALLS = {"float", "round"}


def money_modules() -> list[Path]:
    found = []
    for name in _MONEY:
        path = _ROOT / name
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return [path for path in found if path.name != "waiting.py"]


@pytest.mark.parametrize("path", money_modules(), ids=lambda path: str(path.relative_to(_ROOT)))
def test_no_float_is_written_made_annotated_or_divided_into(path: Path) -> None:
    found = [
        f"line {node.lineno}: {ast.unparse(node)}" for node in ast.walk(ast.parse(path.read_text())) if _is_float(node)
    ]
    assert not found


def _is_float(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=float()):
            return True
        case ast.Name(id="float"):
            return True
        case ast.BinOp(op=ast.Div()) | ast.AugAssign(op=ast.Div()):
            # A path's `/` has a string on one side.
            return not any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in ast.walk(node))
        case ast.Call(func=ast.Name(id=name)):
            return name in _FORBIDDEN_CALLS
    return False


@pytest.mark.parametrize("text", ["x = 0.1", "x: float = y", "x = a / b", "x /= 2", "float(x)", "round(x)", "f(1e9)"])
def test_the_look_for_floats_finds_them(text: str) -> None:
    assert any(_is_float(node) for node in ast.walk(ast.parse(text)))


@given(st.integers(-(10**18), 10**18), st.integers(0, 10_000))
def test_a_share_is_the_nearest_whole_amount_and_the_same_both_ways(amount: int, basis_points: int) -> None:
    share = share_of(amount, basis_points=basis_points)
    assert abs(Fraction(amount * basis_points, 10_000) - share) <= Fraction(1, 2)
    assert share_of(-amount, basis_points=basis_points) == -share
    assert abs(share) <= abs(amount)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0.00"),
        (1, "0.000000001"),
        (-1, "-0.000000001"),
        (10**9, "1.00"),
        (-1_234_500_000_000, "-1,234.50"),
        (123_456_789, "0.123456789"),
        (10**16 * 3, "30,000,000.00"),
    ],
)
def test_amounts_are_shown_exactly(amount: int, text: str) -> None:
    assert dollars(amount) == text
