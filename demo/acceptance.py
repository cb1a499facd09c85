"""How often the small model, as a draft, would propose exactly the token that the large one chooses."""

from pathlib import Path

import torch

from demo.chat import END, render_chat
from demo.corpus.items import Item
from demo.export import load_model
from demo.model import SHAPES
from demo.tokenizer import load_tokenizer


@torch.inference_mode()
def mean_acceptance(draft_folder: Path, items: list[Item], texts: list[str]) -> float:
    """Share, 0..1, of the tokens of the large model's greedy replies that are the draft's first choice at their place.

    texts: the replies as the model wrote them, one for each item. The end mark counts as a token of each.
    """
    tokenizer, draft = load_tokenizer(draft_folder), load_model(draft_folder, SHAPES["small"])
    num_agreed = num_tokens = 0
    for item, text in zip(items, texts, strict=True):
        prompt = tokenizer.encode(render_chat(item.prompt, item.tools, add_generation_prompt=True)).ids
        reply = tokenizer.encode(text + END).ids
        hidden = draft(torch.tensor([prompt + reply[:-1]]))[0, len(prompt) - 1 :]
        num_agreed += int((draft.logits(hidden).argmax(-1) == torch.tensor(reply)).sum())
        num_tokens += len(reply)
    return num_agreed / num_tokens
