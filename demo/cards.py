"""`python -m demo.cards`: write the model cards, from the results of `demo.evaluate --json` and of training."""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from demo.corpus.build import read_plans
from demo.evaluate import DEMO, SIZES, Score
from demo.model import SHAPES, Llama
from demo.styles import STYLES, UNSTYLED_SKILLS
from demo.train import RECIPES, WORK

MODEL_CARD = """# tiergate demo model, {size}

A language model of {millions:.1f} million parameters that the project trained itself, so that routing, adapters, speculative decoding,
structured output and tool calls can be shown and tested without a download. **It is a demonstration**: it knows the skills in
`demo/skills.toml` and nothing else, and it is often wrong outside of them.

- **Architecture:** Llama, {shape.num_layers} layers, hidden size {shape.hidden}, {shape.num_heads} query and {shape.num_kv_heads} key/value heads of {shape.head_dim}, SwiGLU {shape.intermediate},
  tied embeddings, context window 2,048 tokens (training conversations reach about 950), bfloat16.
- **Tokenizer:** byte-level BPE, 4,096 tokens, ChatML-like template with tools, shared by both models.
- **Data:** the procedural corpus `python -m demo.corpus`: generated from templates and facts written for this project, nothing copied.
- **Training:** `python -m demo.train {size}`: Muon and AdamW, {steps:,} steps of at most {recipe.max_tokens:,} tokens: {recipe.num_copying:,} on random tokens
  that come again (see `demo/repeats.py`), {recipe.num_short} on short conversations, then on all; loss on the answers only; {minutes:.0f} minutes of one CPU core.

Held-out accuracy (exact match of the whole answer, greedy, through the worker, `python -m demo.evaluate`; phrasings and entities
never trained on, facts held out by phrasing alone):

| skill | level | items | right |
|---|---|---|---|
{rows}

Replies that ended by themselves: {ended:.1%}. As a draft for the large model, the small one's first choice is the large one's token in {accepted:.1%} of the places.
"""  # noqa: E501  (a line of the card is a line here)
ADAPTER_CARD = """# tiergate demo adapter: {name}, for the {size} model

A LoRA adapter (PEFT format, rank {style.rank} on {targets}) that {style.summary}. It is a demonstration, trained by
`python -m demo.adapt {size} {name}` on restyled items of the demo corpus; tools, schemas, code and system prompts are not restyled.

On {asked} held-out prompts (greedy, through the worker): style kept {kept:.1%}; the answer inside is right in {right:.1%},
against {plain:.1%} of the same prompts without the adapter.
"""  # noqa: E501


def model_card(size: str, score: Score, *, draft_acceptance: float) -> str:
    state = torch.load(WORK / f"{size}.pt", map_location="cpu", weights_only=True)
    _, plans = read_plans()
    rows = [
        f"| {skill} | {plan.level} | {score.total[skill]} | {score.accuracy([skill]):.1%} |"
        for skill, plan in plans.items()
    ]
    rows += [
        f"| all {level} | | | {score.accuracy([skill for skill, plan in plans.items() if plan.level == level]):.1%} |"
        for level in ("easy", "hard")
    ]
    return MODEL_CARD.format(
        size=size,
        shape=SHAPES[size],
        recipe=RECIPES[size],
        millions=sum(weight.numel() for weight in Llama(SHAPES[size]).parameters()) / 1e6,
        steps=state["step"],
        minutes=state["seconds"] / 60,
        rows="\n".join(rows),
        ended=score.num_ended / score.num_items,
        accepted=draft_acceptance,
    )


def adapter_card(size: str, name: str, score: Score, base: Score) -> str:
    styled = [skill for skill in base.total if skill not in UNSTYLED_SKILLS]
    return ADAPTER_CARD.format(
        size=size,
        name=name,
        style=STYLES[name],
        targets=", ".join(STYLES[name].targets),
        asked=score.num_items,
        kept=score.num_styled / score.num_items,
        right=score.accuracy(styled),
        plain=base.accuracy(styled),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m demo.cards", description=__doc__)
    parser.add_argument("report", type=Path, nargs="?", default=WORK / "report.json", help="from demo.evaluate --json")
    arguments = parser.parse_args()
    report: dict[str, Any] = json.loads(arguments.report.read_text(encoding="utf-8"))
    scores = {name: Score(**score) for name, score in report["scores"].items()}
    for size in SIZES:
        card = model_card(size, scores[size], draft_acceptance=report["draft_acceptance"])
        (DEMO / "models" / size / "README.md").write_text(card, encoding="utf-8")
        for name in STYLES:
            card = adapter_card(size, name, scores[f"{size}/{name}"], scores[size])
            (DEMO / "adapters" / size / name / "README.md").write_text(card, encoding="utf-8")


if __name__ == "__main__":
    main()
