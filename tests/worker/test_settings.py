from pathlib import Path
from typing import Any

import pytest

from worker.settings import SettingsError, load_settings


def set_variables(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"TIERGATE_WORKER_{name}", value)


def test_options_win_over_variables_over_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(
        monkeypatch, MODEL="/models/m", PORT="9000", ADAPTERS="a=/x,b=/y", KEY="secret", DRAIN_GRACE_S="1.5", NAME=""
    )
    settings = load_settings(port=9001, dtype=None)
    assert (settings.model, settings.port, settings.dtype) == (Path("/models/m"), 9001, "auto")
    assert settings.adapters == {"a": Path("/x"), "b": Path("/y")}
    assert (settings.api_key, settings.drain_grace_s, settings.served_name) == ("secret", 1.5, "m")
    assert "secret" not in repr(settings)


def test_the_names_of_the_options_work_as_variables_too(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch, MODEL="/m", API_KEY="k", ADAPTER="a=/x", REGISTER="redis://r")
    settings = load_settings()
    assert (settings.api_key, settings.adapters, settings.register_url) == ("k", {"a": Path("/x")}, "redis://r")


def test_options_win_over_variables_that_are_spelled_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch, MODEL="/m", KEY="k", API_KEY="l", ADAPTER="a=/x", REGISTER="redis://r")
    assert load_settings().api_key == "k"
    settings = load_settings(api_key="o", adapters=["b=/y"], register_url="redis://s")
    assert (settings.api_key, settings.adapters, settings.register_url) == ("o", {"b": Path("/y")}, "redis://s")


@pytest.mark.parametrize(
    ("variables", "options", "named"),
    [
        ({}, {"model": None}, "--model"),
        ({"PORT": "http"}, {}, "TIERGATE_WORKER_PORT"),
        ({"MAX_NUM_SEQS": "1.5"}, {}, "TIERGATE_WORKER_MAX_NUM_SEQS"),
        ({"ADAPTERS": "a"}, {}, "TIERGATE_WORKER_ADAPTERS"),
        ({}, {"port": 70000}, "--port"),
        ({}, {"dtype": "int8"}, "--dtype"),
        ({}, {"pooling": "first"}, "--pooling"),
        ({}, {"max_model_len": 0}, "--max-model-len"),
        ({}, {"max_waiting": -1}, "--max-waiting"),
        ({}, {"drain_grace_s": -1.0}, "--drain-grace-s"),
        ({}, {"enterprise_headroom": 1.0}, "--enterprise-headroom"),
        ({}, {"host": "0.0.0.0"}, "TIERGATE_WORKER_KEY"),
        ({}, {"host": "example.com"}, "TIERGATE_WORKER_KEY"),
        ({}, {"register_url": "redis://x"}, "TIERGATE_WORKER_KEY"),
        ({}, {"adapters": {"m": Path("/x")}}, "--adapter"),
        ({"OTHER_KEYS": "a,b"}, {}, "TIERGATE_WORKER_OTHER_KEYS"),
    ],
)
def test_a_bad_value_is_one_line_naming_it(
    variables: dict[str, str], options: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_variables(monkeypatch, **variables)
    with pytest.raises(SettingsError) as caught:
        load_settings(**{"model": Path("/models/m")} | options)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("pairs", [["a"], ["=x"], ["a="], ["a=x", "b"]])
def test_an_adapter_is_a_name_and_a_path(pairs: list[str]) -> None:
    with pytest.raises(SettingsError, match=r"^--adapter: .* is not NAME=PATH$"):
        load_settings(model=Path("/m"), adapters=pairs)


def test_an_adapter_is_given_once() -> None:
    with pytest.raises(SettingsError, match=r"^--adapter: 'a' is given twice$"):
        load_settings(model=Path("/m"), adapters=["a=/x", "a=/y"])
