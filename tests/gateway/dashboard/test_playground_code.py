"""The playground's requests as code: valid in its language, and the same request."""

import ast
import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dashboard.playground_code import snippets

ORIGIN = "https://gateway.example"
BODIES = st.fixed_dictionaries(
    {"model": st.text(), "messages": st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": st.text()}))},
    optional={"temperature": st.floats(0, 2), "seed": st.integers(), "max_tokens": st.integers(1, 100)},
)
NASTY = {"model": "it's", "messages": [{"role": "user", "content": "'; rm -rf / # $(x) `y` \\ \"</script>\u2028😀\n"}]}


def code(body: Any) -> dict[str, str]:
    return dict(snippets(ORIGIN, body))


@given(BODIES)
def test_the_shell_sends_the_same_body(body: Any) -> None:
    words = shlex.split(code(body)["curl"])
    assert words[:2] == ["curl", f"{ORIGIN}/v1/chat/completions"]
    assert json.loads(words[words.index("-d") + 1]) == body


@given(BODIES)
def test_python_calls_with_the_same_fields(body: Any) -> None:
    tree = ast.parse(code(body)["Python"])
    calls = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("create")
    ]
    assert {each.arg: ast.literal_eval(each.value) for each in calls[0].keywords} == body


def test_node_reads_the_same_object(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    text = code(NASTY)["Node"]
    given_object = text[text.index("create(") + len("create(") : text.rindex(");\nconsole")]
    path = tmp_path / "body.mjs"
    path.write_text(f"console.log(JSON.stringify({given_object}))")
    ran = subprocess.run([node, path], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(ran.stdout) == NASTY
