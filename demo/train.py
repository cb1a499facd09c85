"""`python -m demo.train SIZE`: train one base model from the corpus, with checkpoints, and export it."""

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from demo.batches import Batch, Batches, Encoded, encode_items
from demo.corpus.build import read_plans, training_items
from demo.export import export_model
from demo.model import SHAPES, Llama
from demo.optimizer import make_optimizers, schedule
from demo.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer, training_texts

DEMO = Path(__file__).parent
WORK = DEMO / ".work"
TOKENIZER_ITEMS = 80_000


@dataclass(frozen=True)
class Recipe:
    """`num_epochs` passes over the corpus, each freshly drawn; the learning rates drop at step `drop_at`.

    The first `num_short` steps see short conversations only. A step has at most `max_tokens` tokens, padding included.
    """

    num_epochs: float
    drop_at: int
    num_short: int
    max_tokens: int = 4096
    muon_lr: float = 0.02
    adam_lr: float = 3e-3
    seed: int = 1


RECIPES = {
    "small": Recipe(num_epochs=1.35, drop_at=1533, num_short=300),
    "large": Recipe(num_epochs=1.06, drop_at=746, num_short=300),
}


def prepare_tokenizer() -> Path:
    """Train the shared tokenizer once; returns its folder."""
    folder = WORK / "tokenizer"
    if not (folder / "chat_template.jinja").exists():
        save_tokenizer(train_tokenizer(training_texts(training_items()[:TOKENIZER_ITEMS])), folder)
    return folder


def prepare_epoch(number: int, device: torch.device, recipe: Recipe) -> Batches:
    """Batches of one pass; its items are drawn with a seed of their own and kept encoded on disk."""
    path = WORK / f"epoch-{number}.npz"
    if not path.exists():
        items = training_items(seed=read_plans()[0] + number)
        encode_items(load_tokenizer(prepare_tokenizer()), items).save(path)
    return Batches(Encoded.load(path), max_tokens=recipe.max_tokens, seed=recipe.seed)


def answer_loss(model: Llama, batch: Batch, device: torch.device) -> Tensor:
    """Mean cross entropy over the answers' tokens; logits are computed at those positions only."""
    with torch.autocast(device.type, torch.bfloat16):
        hidden = model(batch.ids.to(device)).flatten(0, 1)[batch.positions.to(device)]
        logits = model.logits(hidden)
    return F.cross_entropy(logits.float(), batch.targets.to(device))


class Run:
    """A training run that can be continued: model, optimizers, and how far it is."""

    def __init__(self, size: str, recipe: Recipe, device: torch.device) -> None:
        self.size, self.recipe, self.device = size, recipe, device
        self.model = Llama(SHAPES[size])
        self.model.initialize(recipe.seed)
        self.model.to(device)
        self.optimizers = make_optimizers(self.model, muon_lr=recipe.muon_lr, adam_lr=recipe.adam_lr)
        self.base_lrs = [group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups]
        self.step, self.seconds = 0, 0.0
        self.path = WORK / f"{size}.pt"

    def save(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "seconds": self.seconds,
        }
        torch.save(state, self.path.with_suffix(".tmp"))
        self.path.with_suffix(".tmp").replace(self.path)

    def resume(self) -> None:
        if not self.path.exists():
            return
        state = torch.load(self.path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.seconds = state["step"], state["seconds"]

    def update(self, batch: Batch, *, num_steps: int) -> float:
        factor = schedule(self.step, num_steps=num_steps, drop_at=self.recipe.drop_at)
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        for group, lr in zip(groups, self.base_lrs, strict=True):
            group["lr"] = lr * factor
        loss = answer_loss(self.model, batch, self.device)
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.item()

    def train(self, *, save_every_s: float, out: Path) -> None:
        """Continue to the recipe's end; every `save_every_s` seconds the checkpoint and the export are refreshed."""
        epoch, batches = -1, None
        order: list[list[int]] = []
        first = prepare_epoch(0, self.device, self.recipe).groups(0, num_short=self.recipe.num_short)
        num_steps = int(len(first) * self.recipe.num_epochs)
        started_at = saved_at = time.monotonic()
        smooth = 0.0
        bar = tqdm(total=num_steps, initial=self.step, desc=self.size, unit="step", mininterval=5)
        while self.step < num_steps:
            if epoch != self.step // len(first):
                epoch = self.step // len(first)
                batches = prepare_epoch(epoch, self.device, self.recipe)
                order = batches.groups(epoch, num_short=self.recipe.num_short if epoch == 0 else 0)
            assert batches is not None
            loss = self.update(batches.batch(order[self.step % len(first) % len(order)]), num_steps=num_steps)
            smooth = loss if smooth == 0.0 else 0.98 * smooth + 0.02 * loss
            bar.update()
            bar.set_postfix(loss=f"{smooth:.3f}", refresh=False)
            if (now := time.monotonic()) - saved_at > save_every_s or self.step == num_steps:
                self.seconds += now - started_at
                started_at = saved_at = now
                self.save()
                export_model(self.model, prepare_tokenizer(), out)
        bar.close()
        print(f"{self.size}: {self.step} steps, loss {smooth:.4f}, {self.seconds / 60:.1f} minutes")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m demo.train", description=__doc__)
    parser.add_argument("size", choices=sorted(SHAPES))
    parser.add_argument("--epochs", type=float, help="passes over the corpus instead of the recipe's")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--save-every", type=float, default=240.0, metavar="SECONDS")
    parser.add_argument("--out", type=Path, help="folder of the exported checkpoint")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    recipe = RECIPES[arguments.size]
    if arguments.epochs:
        recipe = replace(recipe, num_epochs=arguments.epochs)
    WORK.mkdir(parents=True, exist_ok=True)
    run = Run(arguments.size, recipe, torch.device(arguments.device))
    run.resume()
    run.train(save_every_s=arguments.save_every, out=arguments.out or DEMO / "models" / arguments.size)


if __name__ == "__main__":
    main()
