"""Adapters saved by peft, and peft's own answers with them."""

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaForCausalLM

MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def save_by_peft(model: Any, root: Path, index: int) -> Path:
    """Save an adapter by peft, with a rank and modules drawn by `index`. B is made random, since it begins at zero."""
    rng = random.Random(index)
    rank = rng.choice([1, 2, 4, 8, 12, 16, 24, 32, 64])
    config = LoraConfig(
        r=rank,
        lora_alpha=rng.choice([8, 16, 32]),
        target_modules=rng.sample(MODULES, rng.randint(1, 7)),
        use_rslora=index % 3 == 0,
        task_type="CAUSAL_LM",
    )
    torch.manual_seed(index)
    peft_model = get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in peft_model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    peft_model.save_pretrained(root / str(index))
    peft_model.unload()
    return root / str(index)


def greedy(model: Any, prompt: list[int], num_tokens: int) -> tuple[list[int], float]:
    """The greedy tokens, and the smallest lead of a chosen token over the second best, in logits."""
    ids, lead = list(prompt), float("inf")
    with torch.inference_mode():
        for _ in range(num_tokens):
            best = model(input_ids=torch.tensor([ids])).logits[0, -1].topk(2)
            lead = min(lead, float(best.values[0] - best.values[1]))
            ids.append(int(best.indices[0]))
    return ids[len(prompt) :], lead


def count_equal(
    checkpoint: Path,
    folders: Mapping[str, Path],
    answers: Sequence[tuple[str | None, list[int], object]],
    *,
    num_tokens: int,
    shown: Callable[[list[int]], object] = list,
) -> int:
    """Assert that every answer (adapter, prompt, tokens as `shown`) equals peft's in float32.

    Returns how many answers could be compared.
    """
    first, *others = folders
    base = LlamaForCausalLM.from_pretrained(checkpoint)
    peft_model = PeftModel.from_pretrained(base, folders[first], first).eval()
    for name in others:
        peft_model.load_adapter(folders[name], name)
    num_compared = 0
    for name, prompt, answer in answers:
        if name is not None:
            peft_model.set_adapter(name)
            expected, lead = greedy(peft_model, prompt, num_tokens)
        else:
            with peft_model.disable_adapter():
                expected, lead = greedy(peft_model, prompt, num_tokens)
        # If the two best tokens are nearly equal, float32 cannot tell which is better.
        if lead > 1e-3:
            assert answer == shown(expected), name
            num_compared += 1
    return num_compared
