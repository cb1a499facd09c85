from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from demo.batches import Batches, encode_items
from demo.corpus.build import draw_items
from demo.corpus.items import Item, assistant, user
from demo.export import export_model, load_model
from demo.lora import add_adapter, save_adapter
from demo.model import Llama, Shape
from demo.optimizer import orthogonalize, schedule
from demo.repeats import Repeats, read_words
from demo.styles import STYLES
from demo.tokenizer import load_tokenizer
from demo.train import Recipe, Run

MODELS = Path(__file__).parents[2] / "demo" / "models"
TOKENIZER = load_tokenizer(MODELS / "small")
TINY = Shape(hidden=32, intermediate=48, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16)


def _tiny(seed: int = 0) -> Llama:
    model = Llama(TINY)
    model.initialize(seed)
    return model


def _batches() -> Batches:
    items = [item for name in ("addition", "memory") for item in draw_items(name, 40, seed=1, is_heldout=False)]
    return Batches(encode_items(TOKENIZER, items), max_tokens=512, seed=1)


def test_only_answers_are_learned() -> None:
    messages = [user("Hi"), assistant("Hello!"), user("1 + 1"), assistant("1 + 1 = 2")]
    encoded = encode_items(TOKENIZER, [Item("x", messages)])
    assert TOKENIZER.decode(encoded.ids[encoded.is_answer].tolist(), skip_special_tokens=False) == (
        "Hello!<|im_end|>1 + 1 = 2<|im_end|>"
    )


def test_a_pass_holds_every_item_once_and_no_batch_is_too_large() -> None:
    batches = _batches()
    groups = batches.groups(0)
    assert sorted(item for group in groups for item in group) == list(range(80))
    assert groups == batches.groups(0) != batches.groups(1)
    assert all(batches.batch(group).ids.numel() <= 512 for group in groups)
    batch = batches.batch(groups[0])
    assert torch.equal(batch.ids.flatten()[batch.positions + 1], batch.targets)


def test_the_exported_model_computes_the_same_in_transformers(tmp_path: Path) -> None:
    model = _tiny()
    export_model(model, MODELS / "small", tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ours = load_model(tmp_path, TINY)
    ids = torch.randint(0, 4096, (2, 700), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.allclose(ours.logits(ours(ids)), theirs(ids).logits, atol=1e-4)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft calls what transformers has renamed
def test_a_saved_adapter_computes_the_same_in_peft(tmp_path: Path) -> None:
    for name, style in STYLES.items():
        export_model(_tiny(), MODELS / "small", tmp_path / "base")
        model = load_model(tmp_path / "base", TINY)
        wrapped = add_adapter(model, style, seed=1)
        for module in wrapped.values():
            torch.nn.init.normal_(module.b, std=0.2)
            module.a.data, module.b.data = module.a.data.bfloat16().float(), module.b.data.bfloat16().float()
        save_adapter(wrapped, style, "base", tmp_path / name)
        base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
        theirs = PeftModel.from_pretrained(base, str(tmp_path / name), autocast_adapter_dtype=True)
        ids = torch.randint(0, 4096, (1, 40), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            assert torch.allclose(model.logits(model(ids)), theirs(ids).logits, atol=1e-4), name


@pytest.mark.long
def test_a_continued_run_ends_where_an_unbroken_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = _batches()
    monkeypatch.setattr("demo.train.prepare_epoch", lambda number, recipe: batches)
    monkeypatch.setattr("demo.train.prepare_tokenizer", lambda: MODELS / "small")
    recipe = Recipe(num_copying=3, num_short=1, num_steps=9, max_tokens=512, reminder_tokens=256)

    def start() -> Run:
        run = Run("small", recipe, torch.device("cpu"))
        run.path = tmp_path / "small.pt"
        return run

    def work(run: Run, num_steps: int) -> None:
        for lesson in islice(run.lessons(), num_steps):
            run.update(lesson)

    unbroken = start()
    work(unbroken, 9)
    broken = start()
    work(broken, 5)
    broken.save()
    continued = start()
    continued.resume()
    assert continued.step == 5
    work(continued, 9)
    assert continued.step == unbroken.step == 9
    for name, weight in unbroken.model.state_dict().items():
        assert torch.equal(weight, continued.model.state_dict()[name]), name


def test_repeated_spans_can_be_known_and_their_tokens_become_all() -> None:
    repeats = Repeats(TOKENIZER, num_steps=100, max_tokens=512, seed=1)
    early, middle = (repeats.batch(step) for step in (0, 70))
    assert early.ids.max() < 105 < 1000 < middle.ids.max() < 4096
    for batch in (early, middle):
        flat, width = batch.ids.flatten().tolist(), batch.ids.shape[1]
        assert len(batch.positions) > 100
        for at, target in zip(batch.positions.tolist(), batch.targets.tolist(), strict=True):
            row = flat[at - at % width : at + 1]
            followers = {row[i + 1] for i in range(len(row) - 1) if row[i] == row[-1]}
            assert target in followers, "a known token follows an earlier one like the last"


def test_words_are_read_in_both_of_their_forms() -> None:
    words = read_words(TOKENIZER)
    assert len(words) > 1000
    for word in words:
        inside, first = (TOKENIZER.decode(ids) for ids in (word.inside, word.first))
        assert inside == f" {first}"
        assert len(word.inside) == 1


def test_orthogonal_updates_have_singular_values_near_one() -> None:
    for shape in ((32, 48), (48, 32)):
        values = torch.linalg.svdvals(
            orthogonalize(torch.randn(shape, generator=torch.Generator().manual_seed(0))).float()
        )
        assert 0.5 < values.min() <= values.max() < 1.4


def test_the_schedule_rises_holds_and_falls() -> None:
    factors = np.array([schedule(step, num_steps=1000, drop_at=300) for step in range(1000)])
    assert factors[0] < 0.1
    assert factors[100] == factors[299] == 1.0
    assert factors[300] == 0.5
    assert (np.diff(factors[300:]) < 0).all()
    assert 0 < factors[-1] < 0.001
