import json
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig as PeftConfig

from protocol.peft_config import BadLoraConfig, LoraConfig, read_config
from tests.support.adapter_files import config_bytes


@pytest.mark.parametrize(("use_rslora", "scaling"), [(False, 2.0), (True, 8.0)])
def test_what_peft_writes_is_read(tmp_path: Path, *, use_rslora: bool, scaling: float) -> None:
    written = PeftConfig(
        r=16, lora_alpha=32, target_modules=["q_proj"], use_rslora=use_rslora, init_lora_weights="gaussian"
    )
    written.save_pretrained(str(tmp_path))
    assert read_config((tmp_path / "adapter_config.json").read_bytes()) == LoraConfig(16, scaling)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"peft_type": None}, "peft_type is None"),
        ({"r": 0}, "from 1 to 256"),
        ({"r": 1000}, "from 1 to 256, got 1000"),
        ({"r": "8"}, "from 1 to 256"),
        ({"r": True}, "from 1 to 256"),
        ({"r": None}, "from 1 to 256"),
        ({"lora_alpha": None}, "lora_alpha must be a number"),
        ({"lora_alpha": 1e300}, "scaling"),
        ({"lora_alpha": 10**400}, "lora_alpha"),
        ({"use_dora": True}, "use_dora is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is not supported"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern is not supported"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"lora_bias": True}, "lora_bias is not supported"),
        ({"init_lora_weights": "pissa"}, "altered the base model"),
        ({"init_lora_weights": "pissa_niter_16"}, "altered the base model"),
        ({"init_lora_weights": "olora"}, "altered the base model"),
        ({"init_lora_weights": "corda"}, "altered the base model"),
        ({"init_lora_weights": "loftq"}, "altered the base model"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadLoraConfig) as caught:
        read_config(config_bytes(**fields))
    assert reason in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, json.dumps("x").encode()])
def test_what_is_no_object_is_refused(content: bytes) -> None:
    with pytest.raises(BadLoraConfig):
        read_config(content)
