from pathlib import Path
from typing import Any

import pytest

from worker.settings import SettingsError, load_settings, parse_adapters


def test_options_win_over_variables_over_defaults() -> None:
    environment = {
        "TIERGATE_WORKER_MODEL": "/models/m",
        "TIERGATE_WORKER_PORT": "9000",
        "TIERGATE_WORKER_ADAPTERS": "a=/x,b=/y",
        "TIERGATE_WORKER_KEY": "k",
        "TIERGATE_WORKER_DRAIN_GRACE_S": "1.5",
    }
    settings = load_settings(environment, port=9001, dtype=None)
    assert (settings.model, settings.port, settings.dtype) == (Path("/models/m"), 9001, "auto")
    assert settings.adapters == {"a": Path("/x"), "b": Path("/y")}
    assert (settings.api_key, settings.drain_grace_s, settings.served_name) == ("k", 1.5, "m")
    assert "k" not in repr(settings).replace("kv", "").split("api_key")[-1][:3]


def test_the_names_of_the_options_work_as_variables_too() -> None:
    environment = {"TIERGATE_WORKER_MODEL": "/m", "TIERGATE_WORKER_API_KEY": "k", "TIERGATE_WORKER_ADAPTER": "a=/x"}
    settings = load_settings(environment)
    assert (settings.api_key, settings.adapters) == ("k", {"a": Path("/x")})


@pytest.mark.parametrize(
    ("environment", "options", "named"),
    [
        ({}, {"model": None}, "--model"),
        ({"TIERGATE_WORKER_PORT": "http"}, {}, "TIERGATE_WORKER_PORT"),
        ({"TIERGATE_WORKER_MAX_NUM_SEQS": "1.5"}, {}, "TIERGATE_WORKER_MAX_NUM_SEQS"),
        ({"TIERGATE_WORKER_ADAPTERS": "a"}, {}, "TIERGATE_WORKER_ADAPTERS"),
        ({}, {"port": 70000}, "--port"),
        ({}, {"dtype": "int8"}, "--dtype"),
        ({}, {"pooling": "first"}, "--pooling"),
        ({}, {"max_model_len": 0}, "--max-model-len"),
        ({}, {"max_waiting": -1}, "--max-waiting"),
        ({}, {"drain_grace_s": -1.0}, "--drain-grace-s"),
        ({}, {"enterprise_headroom": 1.0}, "--enterprise-headroom"),
        ({}, {"host": "0.0.0.0"}, "TIERGATE_WORKER_KEY"),
        ({}, {"host": "example.com"}, "TIERGATE_WORKER_KEY"),
        ({}, {"register": "redis://x"}, "TIERGATE_WORKER_KEY"),
        ({}, {"adapters": {"m": Path("/x")}}, "--adapter"),
    ],
)
def test_a_bad_value_is_one_line_naming_it(environment: dict[str, str], options: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(environment, **{"model": Path("/models/m")} | options)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("pair", ["a", "=x", "a="])
def test_an_adapter_is_a_name_and_a_path(pair: str) -> None:
    with pytest.raises(SettingsError, match="NAME=PATH"):
        parse_adapters([pair])
