"""Sums, differences, products and expressions of several steps. Answers restate the problem; hard ones show steps."""
# ruff: noqa: E501  (lists of phrases read better with many to a line)

from demo.corpus.items import Draw, Item
from demo.corpus.phrasing import ask

ADD = (
    "What is {a} + {b}?", "What is {a} plus {b}?", "{a} + {b}", "{a} + {b} = ?", "Calculate {a} + {b}.", "Add {a} and {b}.",
    "How much is {a} + {b}?", "How much is {a} plus {b}?", "What's {a} + {b}?", "{a} plus {b}?", "Compute {a} + {b}.",
    "What is the sum of {a} and {b}?", "Can you add {a} and {b}?", "Tell me what {a} + {b} is.", "{a}+{b}", "What is {a}+{b}?",
    "Solve {a} + {b}.", "Sum {a} and {b}.", "{a} + {b} =", "What do you get if you add {b} to {a}?", "{a} and {b} makes what?",
    "If I have {a} apples and get {b} more, how many apples do I have?", "I need the result of {a} + {b}.", "What does {a} + {b} equal?",
    "Could you tell me what {a} plus {b} is?", "Work out {a} + {b}.", "Give me the sum of {a} and {b}.", "Do you know what {a} + {b} is?",
    "Can you tell me what {a} + {b} is?",
    "Please add {a} and {b}.",
    "How much do you get if you add {b} to {a}?",
    "Tell me the sum of {a} and {b}.",
    "Can you calculate {a} + {b}?",
)  # fmt: skip
SUBTRACT = (
    "What is {a} - {b}?", "What is {a} minus {b}?", "{a} - {b}", "{a} - {b} = ?", "Calculate {a} - {b}.", "How much is {a} - {b}?",
    "Subtract {b} from {a}.", "What's {a} - {b}?", "{a} minus {b}?", "Compute {a} - {b}.", "Take {b} away from {a}.", "{a}-{b}",
    "What is the difference between {a} and {b}?", "Tell me what {a} - {b} is.", "What is {a}-{b}?", "Solve {a} - {b}.",
    "How much is {a} minus {b}?", "If I have {a} apples and eat {b}, how many are left?", "{a} - {b} =", "What does {a} - {b} equal?",
    "Could you tell me what {a} minus {b} is?", "Work out {a} - {b}.", "I need the result of {a} - {b}.", "Do you know what {a} - {b} is?",
    "Can you tell me what {a} - {b} is?",
    "Tell me how much {a} minus {b} is.",
    "Can you calculate {a} - {b}?",
    "Can you subtract {b} from {a}?",
)  # fmt: skip
MULTIPLY = (
    "What is {a} * {b}?", "What is {a} times {b}?", "{a} * {b}", "{a} * {b} = ?", "Calculate {a} * {b}.", "Multiply {a} by {b}.",
    "How much is {a} * {b}?", "What's {a} * {b}?", "{a} times {b}?", "Compute {a} * {b}.", "What is {a} x {b}?", "{a} x {b}", "{a}*{b}",
    "What is the product of {a} and {b}?", "Tell me what {a} * {b} is.", "Solve {a} * {b}.", "What is {a} multiplied by {b}?",
    "How much is {a} times {b}?", "{a} * {b} =", "Multiply {a} and {b}.", "Work out {a} * {b}.", "I need the result of {a} * {b}.",
    "Could you tell me what {a} times {b} is?", "Do you know what {a} * {b} is?",
    "Can you tell me what {a} * {b} is?",
    "Can you multiply {a} by {b}?",
    "Tell me how much {a} times {b} is.",
    "Can you calculate {a} * {b}?",
)  # fmt: skip
EVALUATE = (
    "What is {e}?", "{e}", "{e} = ?", "Calculate {e}.", "Compute {e}.", "Solve {e}.", "How much is {e}?", "What's {e}?", "Evaluate {e}.",
    "Work out {e} step by step.", "{e} =", "Tell me what {e} is.", "What does {e} equal?", "Can you calculate {e}?",
    "Find the value of {e}.", "What is the result of {e}?", "What is the value of {e}?", "Please work out {e}.",
    "Can you tell me what {e} is?",
    "Tell me how much {e} is.",
    "Can you solve {e}?",
)  # fmt: skip


def _number(draw: Draw) -> int:
    """Mostly two digits, some with one or three."""
    return draw.rng.choices(
        (draw.rng.randint(0, 12), draw.rng.randint(10, 99), draw.rng.randint(100, 999)), (25, 55, 20)
    )[0]


def addition(draw: Draw) -> Item:
    a, b = draw.until_owned(lambda: (_number(draw), _number(draw)))
    return ask(draw, "addition", draw.template(ADD).format(a=a, b=b), f"{a} + {b} = {a + b}")


def subtraction(draw: Draw) -> Item:
    low, high = draw.until_owned(lambda: tuple(sorted((_number(draw), _number(draw)))))
    return ask(draw, "subtraction", draw.template(SUBTRACT).format(a=high, b=low), f"{high} - {low} = {high - low}")


def multiplication(draw: Draw) -> Item:
    """Two digits by one or two. Products of two digits by two are worked by the tens and units of the second factor."""

    def pair() -> tuple[int, int]:
        is_wide = draw.chance(0.75)
        return draw.rng.randint(2, 99), draw.rng.randint(11, 99) if is_wide else draw.rng.randint(2, 10)

    a, b = draw.until_owned(pair)
    return ask(draw, "multiplication", draw.template(MULTIPLY).format(a=a, b=b), worked_product(a, b))


def worked_product(a: int, b: int) -> str:
    """`23 * 14 = 230 + 92 = 322`; products by a single digit or a round number need no step."""
    tens, units = b - b % 10, b % 10
    if tens == 0 or units == 0 or a < 10:
        return f"{a} * {b} = {a * b}"
    return f"{a} * {b} = {a * tens} + {a * units} = {a * b}"


def multi_step(draw: Draw) -> Item:
    """Three or four numbers, usually with one product. The answer reduces the expression, one operation per line."""
    expression, steps = draw.until_owned(lambda: _expression(draw))
    answer = "\n".join(steps)
    return ask(draw, "multi_step", draw.template(EVALUATE).format(e=expression), answer)


def _expression(draw: Draw) -> tuple[str, tuple[str, ...]]:
    rng = draw.rng
    while True:
        numbers = [rng.randint(1, 50) for _ in range(rng.choice((3, 3, 4)))]
        operators = [rng.choice("+-") for _ in numbers[1:]]
        if draw.chance(0.7):
            where = rng.randrange(len(operators))
            operators[where] = "*"
            numbers[where], numbers[where + 1] = rng.randint(2, 12), rng.randint(2, 12)
        steps = reduce_expression(numbers, operators)
        if steps is not None:
            return _render(numbers, operators), steps


def _render(numbers: list[int], operators: list[str]) -> str:
    return str(numbers[0]) + "".join(f" {o} {n}" for o, n in zip(operators, numbers[1:], strict=True))


def reduce_expression(numbers: list[int], operators: list[str]) -> tuple[str, ...] | None:
    """One line per operation, products first; None if an intermediate value would be negative."""
    numbers, operators, lines = list(numbers), list(operators), []
    while operators:
        at = operators.index("*") if "*" in operators else 0
        a, b, operator = numbers[at], numbers[at + 1], operators[at]
        value = a * b if operator == "*" else a + b if operator == "+" else a - b
        if value < 0:
            return None
        lines.append(f"{a} {operator} {b} = {value}")
        numbers[at : at + 2] = [value]
        del operators[at]
    return tuple(lines)
