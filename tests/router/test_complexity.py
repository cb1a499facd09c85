import time
import timeit
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.messages import AssistantMessage, FunctionDefinition, Message, SystemMessage, Tool, UserMessage
from router.complexity import (
    CODE_SCORE,
    DEFAULT_THRESHOLD,
    FOREIGN_SCORE,
    LONG_TURNS,
    chat_complexity,
    score_prompts,
    text_complexity,
)
from router.features import MAX_SCANNED_CHARS

WEATHER = Tool(function=FunctionDefinition(name="get_weather", parameters={"type": "object", "properties": {}}))

CODE = [
    "Write a Python function that merges two sorted lists.",
    "```\nfor x in range(3): print(x)\n```\nWhat does this print?",
    "def add(a, b):\n    return a - b\nWhy is the result wrong?",
    "Fix this: const total = items.reduce((sum, x) => sum + x.price, 0)",
    "SELECT name FROM users WHERE age > 30; make this query faster",
    "Why does my Rust program fail to compile with a lifetime error?",
    "Explain this TypeScript error: Type 'string' is not assignable to type 'number' in function parse",
    "How do I write a regex that matches an IPv4 address in Python?",
    "Implement a binary search tree in Java with an insert method.",
    "Refactor this class so that each method has one job.",
    "My docker compose file does not start the server, what is wrong?",
    "Write a bash script that renames all files in a folder.",
    "Write unit tests for a stack class.",
    "There is a deadlock between two threads in this program; how do I debug it?",
    "#include <stdio.h>\nint main() { int *p = 0;\n *p = 1;\n return 0;\n}",
    "What is the time complexity of this algorithm?\nwhile (n > 1) {\n  n = n / 2;\n}",
    "Convert this SQL query to pandas: SELECT a, SUM(b) FROM t GROUP BY a",
    "Write a GraphQL schema and a resolver function for a blog.",
    "How do I center a div with CSS and HTML?",
    "Traceback (most recent call last): KeyError: 'id'. Which line of my Python code raises this exception?",
    "Implement an LRU cache with a hashmap and a linked list.",
    "Write a SQL query that finds the second highest salary.",
    "public static void main(String[] args) {\n  System.out.println(x);\n}\nWhy is x not found?",
    "Optimise this loop: for (int i = 0; i < n; i++) {\n a[i] = b[i] + c[i];\n}",
    "Write a React component that shows a list with a search field.",
    "Explain what `git rebase --onto` does to my git branch and write an example.",
    "How can I parse a CSV in Rust without an external library? Write the code.",
    "fn main() {\n    let v = vec![1];\n    let w = v;\n    println!(\"{:?}\", v);\n}",
    "Write a Kubernetes manifest for a service with two replicas and test it.",
    "Use async and await in Python to call an API ten times.",
    "Write a recursive function for the Towers of Hanoi and return the list of moves.",
    "<ul><li>one</li><li>two</li></ul> how do I style this with CSS?",
    "What does `x = [i**2 for i in range(10) if i % 2 == 0]` compute? def f(x): return x[0] == 1; f()",
    "Write a Dockerfile for a Python web server.",
    "Review this function for bugs: function f(a) { return a == null ? 0 : a.length; }",
    "Which data structure makes a priority queue fast? Implement it with an array.",
    "Write a decorator in Python that retries a function three times.",
    "Add a mutex so that the counter is safe with several threads in this code.",
    "Translate this Java code to Kotlin: List<String> xs = new ArrayList<>();",
    "Write a script with numpy that inverts a matrix and a pytest for it.",
]  # fmt: skip

FOREIGN = [
    "Berechne die Ableitung der Funktion und erkläre, wie die Kettenregel dabei verwendet wird.",
    "Comparez les causes de la Révolution française et de la Révolution russe dans un court essai.",
    "Explica por qué el cielo es azul y cómo se relaciona con la dispersión de la luz.",
    "Dimostra che la radice quadrata di due non è un numero razionale e spiega il ragionamento.",
    "Leg uit waarom de inflatie stijgt en wat de centrale bank met de rente kan doen.",
    "Explique por que a inflação sobe e como o banco central usa os juros para controlar a economia.",
    "请证明根号二是无理数，并逐步解释每一步的推理过程。",
    "二次方程式の解の公式を導出し、その意味を詳しく説明してください。",
    "Докажите, что корень из двух является иррациональным числом, и объясните каждый шаг.",
    "اشرح لماذا ترتفع الأسعار وكيف يستخدم البنك المركزي سعر الفائدة للسيطرة عليها.",
    "सिद्ध कीजिए कि दो का वर्गमूल एक अपरिमेय संख्या है और प्रत्येक चरण समझाइए।",
    "이차방정식의 근의 공식을 유도하고 각 단계를 자세히 설명해 주세요.",
    "Wyjaśnij, dlaczego niebo jest niebieskie i jak to się ma do rozpraszania światła w atmosferze.",
    "Αποδείξτε ότι η τετραγωνική ρίζα του δύο είναι άρρητος αριθμός.",
]


def score_of(prompt: str, *tools: Tool) -> float:
    return chat_complexity([UserMessage(content=prompt)], tools).score


@pytest.mark.parametrize(
    "prompt", ["Hello!", "How are you today?", "What is the capital of France?", "Who wrote Hamlet?"]
)
def test_small_talk_and_plain_facts_are_simple(prompt: str) -> None:
    assert score_of(prompt) < DEFAULT_THRESHOLD


@pytest.mark.parametrize("prompt", CODE)
def test_code_goes_large(prompt: str) -> None:
    assert score_of(prompt) >= CODE_SCORE > DEFAULT_THRESHOLD


@pytest.mark.parametrize(
    "prompt",
    [
        "Write a letter to my landlord about the heating.",
        "Which class of drugs lowers blood pressure?",
        "The python is a snake that kills its prey by constriction. How long can it be?",
        "What is the best thread count for bed sheets?",
        "List three rivers in Europe.",
    ],
)
def test_words_that_programs_share_with_the_world_are_no_code(prompt: str) -> None:
    assert score_of(prompt) < CODE_SCORE


@pytest.mark.parametrize("prompt", FOREIGN)
def test_other_languages_than_english_are_not_mistaken_for_easy(prompt: str) -> None:
    found = text_complexity(prompt)
    assert found.score >= FOREIGN_SCORE > DEFAULT_THRESHOLD
    assert found.is_uncertain


def test_english_with_a_few_foreign_words_is_english() -> None:
    assert not text_complexity(
        "The café on the Champs-Élysées is known for its crème brûlée and the view."
    ).is_uncertain


def test_tools_offered_or_called_need_the_large_model() -> None:
    question: list[Message] = [UserMessage(content="What is the weather in Rome?")]
    assert not chat_complexity(question).needs_large
    assert chat_complexity(question, [WEATHER]).needs_large
    assert score_of("What is the weather in Rome?", WEATHER) >= DEFAULT_THRESHOLD


@pytest.mark.parametrize("is_rule", [True, False])
def test_a_schema_needs_the_large_model(is_rule: bool) -> None:
    text = 'Answer by this schema: {"type": "object", "properties": {"age": {"type": "integer"}}}'
    messages: list[Message] = [UserMessage(content="Ada is 36.")]
    messages = [SystemMessage(content=text), *messages] if is_rule else [UserMessage(content=f"{text}\nAda is 36.")]
    assert chat_complexity(messages).needs_large
    assert not chat_complexity([UserMessage(content="Ada is 36.")]).needs_large


def test_a_long_conversation_is_complex_whatever_its_last_question() -> None:
    turn: list[Message] = [UserMessage(content="Hi, I am Ada."), AssistantMessage(content="Hello Ada!")]
    question = UserMessage(content="What is my name?")
    assert chat_complexity([*turn, question]).score < DEFAULT_THRESHOLD
    assert chat_complexity([*turn * LONG_TURNS, question]).score >= DEFAULT_THRESHOLD


def test_the_entry_point_scores_without_setup() -> None:
    prompts = ["Hello!", "", "What is 23 * 14?", "x" * 100_000]
    scores = score_prompts(prompts)
    assert scores == [text_complexity(prompt).score for prompt in prompts]
    assert all(isinstance(score, float) for score in scores)


@given(st.text(st.characters(), max_size=200))
def test_any_text_has_a_score_within_0_and_1(prompt: str) -> None:
    assert 0 <= score_prompts([prompt])[0] <= 1
    assert score_prompts([prompt]) == score_prompts([prompt])


@pytest.mark.parametrize("prompt", ["\ud800", "\0", "\r\n" * 50, "A.\nB.\nC.", ".\n" * 80, "9" * 5000, "é" * 5000])
def test_odd_texts_have_a_score(prompt: str) -> None:
    assert 0 <= text_complexity(prompt).score <= 1


@given(st.text("ab3+*={ }\n", max_size=40), st.text("ab3+*={ }\n", max_size=40))
def test_of_a_long_text_only_head_and_tail_are_read(head: str, tail: str) -> None:
    def padded(marks: str) -> str:
        filler = "x " * MAX_SCANNED_CHARS
        return f"{head} {filler}{marks}{filler} {tail}"

    # The length of the whole is a feature: both have the same.
    assert text_complexity(padded(" ``` {{ ")).score == text_complexity(padded(" xxx xx ")).score


@pytest.mark.parametrize(
    "unit", ["select ", "first ", "1+", "; ", "1 ", "a=", "\\a", '"type', "step ", "\n1.", "\nA. "]
)
def test_time_grows_at_most_linearly(unit: str) -> None:
    """Four times the text may take four times as long; a quadratic pattern would take sixteen."""
    short, long = unit * (800 // len(unit)), unit * (3200 // len(unit))
    # The time that this process computes: others may compute at the same time.
    seconds = [
        min(timeit.repeat(lambda: text_complexity(each), timer=time.process_time, number=5, repeat=7))  # noqa: B023
        for each in (short, long)
    ]
    assert seconds[1] < 10 * seconds[0]


def test_a_longer_story_problem_is_no_simpler() -> None:
    """Held before any data: what takes more sentences takes more steps."""
    step = "Then she buys 3 more boxes of 12 apples and gives a third of them to her brother. "
    problems = [f"Ada has 5 apples. {step * count}How many apples does she have now?" for count in (1, 4, 16)]
    assert all(low < high for low, high in pairwise(score_prompts(problems)))
