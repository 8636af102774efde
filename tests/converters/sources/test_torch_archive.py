"""What a size in a `.pt2` may be: symbols, numbers and arithmetic. No torch is needed to know."""

from __future__ import annotations

import pytest

from edgekit_converters.sources.torch_archive import is_arithmetic


@pytest.mark.parametrize(
    "text",
    [
        "Symbol('s16', positive=True, integer=True)",
        "Mul(Integer(6), Max(Integer(1), Add(Symbol('s16', positive=True, integer=True), Integer(-2))))",
        "FloorDiv(Symbol('s0', integer=True), Integer(2))",
        "Pow(Symbol('s0'), Integer(2))",
        "Float('1.5', precision=53)",
        "StrictLessThan(Symbol('s0'), Integer(5))",
        "s0 + 2*s1 - 1",
        "8",
    ],
)
def test_sizes_that_torch_writes_are_arithmetic(text: str) -> None:
    assert is_arithmetic(text)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "Symbol('s0').__class__",
        "(lambda: 1)()",
        "[x for x in (1,)]",
        "Symbol(__import__('os').name)",
        "Symbol('x\\ny')",
        "open('/etc/passwd')",
        "sympify('1')",
        "eval('1')",
        "Integer('__import__')",
        "Float('__import__(1)')",
        "Max(*range(9))",
        "Integer(x=print())",
        "Pow(Integer(9), Integer(999999999))",
        "Pow(Pow(Integer(9), Integer(64)), Integer(64))",
        "9**9**9",
        "1 << 99999999",
        "f'{1}'",
        "s0; s1",
        "1" * 5000,
        "(" * 3000 + "1" + ")" * 3000,
    ],
)
def test_everything_else_is_none(text: str) -> None:
    """S24: what sympy would evaluate."""
    assert not is_arithmetic(text)
