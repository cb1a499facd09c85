"""`python -m demo.train SIZE`: train one base model from the corpus, with checkpoints, and export it."""

import argparse
import time
from collections.abc import Iterator
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
from demo.repeats import Repeats
from demo.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer, training_texts

DEMO = Path(__file__).parent
WORK = DEMO / ".work"
TOKENIZER_ITEMS = 80_000


@dataclass(frozen=True)
class Recipe:
    """Steps on repeated random tokens, then on short conversations, then on all conversations, drawn anew each pass.

    A step has at most `max_tokens` tokens, padding included, in two batches whose conversations differ in length. After
    the copying phase each step has `reminder_tokens` more of repeated tokens, so that copying is not forgotten.
    """

    num_copying: int
    num_short: int
    num_steps: int
    max_tokens: int = 4096
    reminder_tokens: int = 512
    muon_lr: float = 0.02
    adam_lr: float = 3e-3
    seed: int = 1

    @property
    def drop_at(self) -> int:
        return self.num_copying + self.num_short


RECIPES = {
    "small": Recipe(num_copying=1400, num_short=300, num_steps=6000),
    "large": Recipe(num_copying=800, num_short=300, num_steps=6600),
}
BATCHES_PER_STEP = 2


def prepare_tokenizer() -> Path:
    """Train the shared tokenizer once; returns its folder."""
    folder = WORK / "tokenizer"
    if not (folder / "chat_template.jinja").exists():
        save_tokenizer(train_tokenizer(training_texts(training_items()[:TOKENIZER_ITEMS])), folder)
    return folder


def prepare_epoch(number: int, recipe: Recipe) -> Batches:
    """Batches of one pass. Each pass draws its items with a seed of its own, and keeps them encoded on disk."""
    path = WORK / f"epoch-{number}.npz"
    if not path.exists():
        items = training_items(seed=read_plans()[0] + number)
        encode_items(load_tokenizer(prepare_tokenizer()), items).save(path)
    return Batches(Encoded.load(path), max_tokens=recipe.max_tokens // BATCHES_PER_STEP, seed=recipe.seed)


def answer_loss(model: Llama, batch: Batch, device: torch.device) -> Tensor:
    """Mean cross entropy over the tokens of answers; logits are computed only at their positions."""
    with torch.autocast(device.type, torch.bfloat16):
        hidden = model(batch.ids.to(device)).flatten(0, 1)[batch.positions.to(device)]
        logits = model.logits(hidden)
    return F.cross_entropy(logits.float(), batch.targets.to(device))


class Run:
    """A training run that can be resumed: the model, the optimizers and the current step."""

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

    def update(self, batches: list[Batch]) -> float:
        """Make one step on the mean loss of the batches, weighted by their tokens; returns the loss."""
        factor = schedule(self.step, num_steps=self.recipe.num_steps, drop_at=self.recipe.drop_at)
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        for group, lr in zip(groups, self.base_lrs, strict=True):
            group["lr"] = lr * factor
        num_tokens = sum(batch.ids.numel() for batch in batches)
        losses = [answer_loss(self.model, batch, self.device) * batch.ids.numel() / num_tokens for batch in batches]
        loss = torch.stack(losses).sum()
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.item()

    def lessons(self) -> Iterator[list[Batch]]:
        """The batches of each step, from the current one to the last."""
        recipe = self.recipe
        tokenizer = load_tokenizer(prepare_tokenizer())
        repeats, reminders = (
            Repeats(tokenizer, num_steps=recipe.num_copying, max_tokens=max_tokens, seed=recipe.seed)
            for max_tokens in (recipe.max_tokens, recipe.reminder_tokens)
        )
        for step in range(self.step, recipe.num_copying):
            yield [repeats.batch(step)]
        at, epoch = recipe.num_copying, 0
        while at < recipe.num_steps:
            batches = prepare_epoch(epoch, recipe)
            order = batches.groups(epoch, num_short=0 if epoch else recipe.num_short * BATCHES_PER_STEP)
            for first in range(0, len(order) - BATCHES_PER_STEP + 1, BATCHES_PER_STEP):
                if self.step <= at < recipe.num_steps:
                    talks = [batches.batch(group) for group in order[first : first + BATCHES_PER_STEP]]
                    yield [*talks, reminders.batch(at)]
                at += 1
            epoch += 1

    def train(self, *, save_every_s: float, out: Path) -> None:
        """Train to the recipe's end, saving the checkpoint and the export every `save_every_s` seconds."""
        num_steps = self.recipe.num_steps
        started_at = saved_at = time.monotonic()
        smooth = 0.0
        bar = tqdm(total=num_steps, initial=self.step, desc=self.size, unit="step", mininterval=5)
        for batches in self.lessons():
            loss = self.update(batches)
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
    parser.add_argument("--steps", type=int, help="instead of the recipe's")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--save-every", type=float, default=240.0, metavar="SECONDS")
    parser.add_argument("--out", type=Path, help="folder of the exported checkpoint")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    recipe = RECIPES[arguments.size]
    if arguments.steps:
        recipe = replace(recipe, num_steps=arguments.steps)
    WORK.mkdir(parents=True, exist_ok=True)
    run = Run(arguments.size, recipe, torch.device(arguments.device))
    run.resume()
    run.train(save_every_s=arguments.save_every, out=arguments.out or DEMO / "models" / arguments.size)


if __name__ == "__main__":
    main()
