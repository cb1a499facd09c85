"""`python -m demo.adapt SIZE STYLE`: train one adapter on the exported base model."""

import argparse
import time
from itertools import cycle, islice
from pathlib import Path

import torch
from tqdm import tqdm

from demo.batches import Batches, encode_items
from demo.corpus.build import draw_items, read_plans
from demo.corpus.items import Item
from demo.export import load_model
from demo.lora import add_adapter, save_adapter
from demo.model import SHAPES
from demo.styles import STYLES, UNSTYLED_SKILLS, restyle
from demo.tokenizer import load_tokenizer
from demo.train import BATCHES_PER_STEP, DEMO, answer_loss

# The small model needs more steps for the same quality. A step is two batches whose conversations differ in length.
NUM_STEPS = {"small": 1000, "large": 450}
# Changing words inside an answer, and continuing on the line of the opening, is harder to learn than a frame.
MORE_STEPS = {("small", "pirate"): 5000, ("large", "pirate"): 600}
MAX_TOKENS, LR, SEED = 4096, 3e-3, 3
# One of this many corpus items is enough to learn a style. With fewer items the sums are learned by heart.
ITEM_SHARE = 2


def train_adapter(size: str, name: str, *, num_steps: int, device: torch.device, out: Path) -> float:
    """Train and save the adapter; returns the mean loss of the last 20 steps."""
    style, folder = STYLES[name], DEMO / "models" / size
    tokenizer = load_tokenizer(folder)
    styled = [restyle(item, style) for item in _plain_items()]
    batches = Batches(encode_items(tokenizer, styled), max_tokens=MAX_TOKENS // BATCHES_PER_STEP, seed=SEED)
    model = load_model(folder, SHAPES[size])
    wrapped = add_adapter(model, style, SEED)
    model.to(device)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=LR, betas=(0.9, 0.98), weight_decay=0.0)
    losses: list[float] = []
    order = cycle(batches.groups(0))
    for step in tqdm(range(num_steps), desc=f"{size}/{name}", unit="step", mininterval=5):
        optimizer.param_groups[0]["lr"] = LR * min((step + 1) / 20, 1 - 0.97 * step / num_steps)
        groups = islice(order, BATCHES_PER_STEP)
        loss = torch.stack([answer_loss(model, batches.batch(group), device) for group in groups]).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    save_adapter(wrapped, style, f"demo/models/{size}", out)
    return sum(losses[-20:]) / len(losses[-20:])


def _plain_items() -> list[Item]:
    """New training items of the skills to which a style applies."""
    seed, plans = read_plans()
    return [
        item
        for name, plan in plans.items()
        if name not in UNSTYLED_SKILLS
        for item in draw_items(name, plan.train // ITEM_SHARE, seed=seed + 100, is_heldout=False)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m demo.adapt", description=__doc__)
    parser.add_argument("size", choices=sorted(SHAPES))
    parser.add_argument("style", choices=sorted(STYLES))
    parser.add_argument("--steps", type=int, help="instead of the recipe's")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    out = arguments.out or DEMO / "adapters" / arguments.size / arguments.style
    started_at = time.monotonic()
    default = MORE_STEPS.get((arguments.size, arguments.style), NUM_STEPS[arguments.size])
    steps, device = arguments.steps or default, torch.device(arguments.device)
    loss = train_adapter(arguments.size, arguments.style, num_steps=steps, device=device, out=out)
    minutes = (time.monotonic() - started_at) / 60
    print(f"{arguments.size}/{arguments.style}: {steps} steps, loss {loss:.4f}, {minutes:.1f} minutes")


if __name__ == "__main__":
    main()
