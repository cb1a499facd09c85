"""Clients that ask for structure, against a worker alone and against the whole platform, with the demo models."""

import datetime
import json
from collections.abc import Iterator
from typing import Literal

import httpx
import openai
import pytest
from langchain_openai import ChatOpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, Field, SecretStr

from tests.support.platform import Platform
from tests.support.running_worker import RunningWorker, running_worker
from tests.worker.guided.conftest import LARGE

ASK: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "Extract as JSON: Anna is 34 years old, lives in Oslo and was here on 2024-02-29."}
]


class Address(BaseModel):
    city: str = Field(max_length=20)
    zip: str | None = Field(default=None, pattern="^[0-9]{5}$")


class Person(BaseModel):
    """Someone."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=130)
    mood: Literal["glad", "sad"]
    home: Address
    others: list[Address] = Field(max_length=2)
    seen: datetime.date


class Node(BaseModel):
    label: Literal["a", "b"]
    child: "Node | None"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str = Field(max_length=8)


class Owner(BaseModel):
    pet: Cat | Dog = Field(discriminator="kind")


MODELS: list[type[BaseModel]] = [Person, Node, Owner]


@pytest.fixture(scope="module")
def worker() -> Iterator[RunningWorker]:
    with running_worker(LARGE, name="large") as running:
        yield running


@pytest.fixture(params=["worker", "gateway"])
def origin(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Base URL and key."""
    if request.param == "worker":
        return request.getfixturevalue("worker").base_url, "none"
    platform: Platform = request.getfixturevalue("platform")
    return platform.base_url, platform.enterprise_key


@pytest.mark.parametrize("form", MODELS, ids=lambda form: form.__name__)
def test_the_official_client_parses_streamed_and_not(origin: tuple[str, str], form: type[BaseModel]) -> None:
    base_url, key = origin
    with openai.OpenAI(base_url=base_url, api_key=key, max_retries=0) as client:
        whole = client.chat.completions.parse(
            model="large", messages=ASK, response_format=form, max_tokens=300, temperature=1.2, seed=1
        )
        parsed = whole.choices[0].message.parsed
        assert isinstance(parsed, form)
        with client.chat.completions.stream(
            model="large", messages=ASK, response_format=form, max_tokens=300, temperature=1.2, seed=1
        ) as stream:
            streamed = stream.get_final_completion()
        assert streamed.choices[0].message.parsed == parsed


# LangChain's own, on the parsed part of the official client's events.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("method", ["json_schema", "json_mode"])
def test_langchain_gives_objects(origin: tuple[str, str], method: Literal["json_schema", "json_mode"]) -> None:
    base_url, key = origin
    model = ChatOpenAI(
        model="large",
        base_url=base_url,
        api_key=SecretStr(key),
        temperature=0,
        max_retries=0,
        max_completion_tokens=300,
    )
    if method == "json_schema":
        assert isinstance(
            model.with_structured_output(Person, method=method, strict=True).invoke(str(ASK[0]["content"])), Person
        )
        assert isinstance(list(model.with_structured_output(Owner, method=method).stream("A pet?"))[-1], Owner)
    else:
        asked = 'Give the JSON for this schema: {"type": "object"}. Text: Anna is 34 years old.'
        assert isinstance(model.with_structured_output(None, method=method).invoke(asked), dict)


def test_the_platform_refuses_what_the_worker_cannot_hold(platform: Platform) -> None:
    headers = {"Authorization": f"Bearer {platform.enterprise_key}"}
    for schema, place in (
        ({"type": "object", "properties": {"a": {"uniqueItems": True}}}, "schema/properties/a"),
        ({"enum": ["x" * 1_000_000]}, "65536"),
    ):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        for stream in (False, True):
            body = {"model": "small", "messages": ASK, "response_format": form, "stream": stream}
            reply = httpx.post(f"{platform.base_url}/chat/completions", json=body, headers=headers, timeout=30)
            error = reply.json()["error"]
            assert (reply.status_code, error["param"]) == (400, "response_format.json_schema.schema")
            assert place in error["message"]


def test_vllms_forms_pass_the_platform(platform: Platform) -> None:
    with openai.OpenAI(base_url=platform.base_url, api_key=platform.enterprise_key, max_retries=0) as client:
        answer = client.chat.completions.create(
            model="auto", messages=ASK, extra_body={"structured_outputs": {"choice": ["seven", "eight"]}}
        )
        assert answer.choices[0].message.content in ("seven", "eight")
        whole = client.chat.completions.create(
            model="small", messages=ASK, max_tokens=100, extra_body={"guided_json": json.dumps({"enum": [3, "x"]})}
        )
        assert json.loads(whole.choices[0].message.content or "") in (3, "x")
