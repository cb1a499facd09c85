"""Short Python functions from a description."""
# ruff: noqa: E501  (lists of phrases read better with many to a line)

from demo.corpus.items import Draw, Item
from demo.corpus.phrasing import ask

REQUEST = (
    "Write a Python function that {what}.", "Write a function that {what}.", "Python function that {what}?", "Give me a Python function that {what}.",
    "Write Python code that {what}.", "Can you write a Python function that {what}?", "I need a Python function that {what}.",
    "Show me a Python function that {what}.", "Code a Python function that {what}.", "Create a Python function that {what}.",
    "Please write a function in Python that {what}.", "Could you write a Python function that {what}?",
    "Please write a Python function that {what}.",
    "Can you give me a Python function that {what}?",
)  # fmt: skip
# (description, name, parameters, returned expression); {n} is a number that the request names
FUNCTIONS = (
    ("adds two numbers", "add", "a, b", "a + b"), ("multiplies two numbers", "multiply", "a, b", "a * b"), ("subtracts two numbers", "subtract", "a, b", "a - b"),
    ("divides two numbers", "divide", "a, b", "a / b"), ("returns the square of a number", "square", "n", "n * n"), ("doubles a number", "double", "n", "n * 2"),
    ("adds {n} to a number", "add_{n}", "x", "x + {n}"), ("multiplies a number by {n}", "times_{n}", "x", "x * {n}"),
    ("subtracts {n} from a number", "subtract_{n}", "x", "x - {n}"), ("checks if a number is greater than {n}", "is_greater_than_{n}", "x", "x > {n}"),
    ("checks if a number is divisible by {n}", "is_divisible_by_{n}", "x", "x % {n} == 0"), ("returns the first {n} items of a list", "first_{n}", "items", "items[:{n}]"),
    ("returns the last {n} items of a list", "last_{n}", "items", "items[-{n}:]"), ("repeats a text {n} times", "repeat_{n}", "text", "text * {n}"),
    ("checks if a number is even", "is_even", "n", "n % 2 == 0"), ("checks if a number is odd", "is_odd", "n", "n % 2 == 1"),
    ("reverses a string", "reverse", "text", "text[::-1]"), ("returns the length of a string", "length", "text", "len(text)"),
    ("converts a string to upper case", "to_upper", "text", "text.upper()"), ("converts a string to lower case", "to_lower", "text", "text.lower()"),
    ("returns the largest number in a list", "largest", "numbers", "max(numbers)"), ("returns the smallest number in a list", "smallest", "numbers", "min(numbers)"),
    ("sums a list of numbers", "total", "numbers", "sum(numbers)"), ("sorts a list", "sort_items", "items", "sorted(items)"),
    ("returns the average of a list", "average", "numbers", "sum(numbers) / len(numbers)"), ("returns the first item of a list", "first", "items", "items[0]"),
    ("returns the last item of a list", "last", "items", "items[-1]"), ("counts the words in a text", "count_words", "text", "len(text.split())"),
    ("checks if a string is a palindrome", "is_palindrome", "text", "text == text[::-1]"), ("joins a list of words with spaces", "join_words", "words", "' '.join(words)"),
    ("removes duplicates from a list", "unique", "items", "list(set(items))"), ("says hello to a name", "greet", "name", "f'Hello, {name}!'"),
)  # fmt: skip


def python(draw: Draw) -> Item:
    """Held out by phrasing and, if the description contains a number, by the number."""
    which = draw.rng.randrange(len(FUNCTIONS))
    what, name, parameters, expression = FUNCTIONS[which]
    if "{n}" in what:
        n = str(draw.until_owned(lambda: (which, draw.rng.randint(2, 99)))[1])
        what, name, expression = what.replace("{n}", n), name.replace("{n}", n), expression.replace("{n}", n)
    answer = f"def {name}({parameters}):\n    return {expression}"
    return ask(draw, "python", draw.template(REQUEST).format(what=what), answer)
