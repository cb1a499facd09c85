"""A mask and the matcher that it was made by say the same of each token."""

import json
import random

import numpy as np
import pytest
import torch

from kernels.sampling import forbid
from protocol.guided import ANY_OBJECT, Choice, JsonSchema, Regex, Spec
from worker.guided import Matcher, Vocabulary
from worker.guided.compiler import compile_grammar
from worker.guided.masks import MaskFiller, Masks

PERSON = JsonSchema(
    json.dumps(
        {
            "type": "object",
            "properties": {"näme": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 18}},
            "required": ["näme", "age"],
            "additionalProperties": False,
        }
    )
)
SPECS = [PERSON, ANY_OBJECT, Regex("[a-zé]{2,}( [a-z]+)*!"), Choice(("yes", "yesterday", "no"))]


def filled(filler: MaskFiller, matchers: list[Matcher | None]) -> Masks:
    future = filler.begin(matchers)
    assert future is not None
    return future.result()


def allowed(words: np.ndarray) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


@pytest.mark.parametrize("spec", SPECS, ids=lambda value: str(value)[:30])
def test_a_mask_allows_exactly_the_tokens_that_the_matcher_takes(spec: Spec, vocabulary: Vocabulary) -> None:
    rng = random.Random(1)
    filler = MaskFiller(vocabulary.vocab_size)
    matcher = compile_grammar(vocabulary, spec).start()
    for _ in range(12):
        found = allowed(filled(filler, [matcher]).words[0])
        taken = {i for i in range(vocabulary.vocab_size) if matcher.ll.validate_tokens([i]) == 1}
        if forced := matcher.ll.compute_ff_tokens():
            # Of several ways to spell what must come, only the tokenizer's own is left.
            assert forced[0] in taken
            taken = {forced[0]}
        # The end, too, is a token; where it may come the matcher is at an end.
        ends = set(vocabulary.eos_token_ids)
        assert found - ends == taken - ends
        assert bool(found & ends) == matcher.ll.is_accepting()
        if not found - ends:
            break
        matcher.accept(rng.choice(sorted(found - ends)))
    filler.close()


def test_rows_without_a_grammar_keep_all_their_tokens(vocabulary: Vocabulary) -> None:
    filler = MaskFiller(vocabulary.vocab_size)
    digits, letters = (compile_grammar(vocabulary, Regex(pattern)).start() for pattern in ("[0-9]+", "[a-z]+"))
    assert filler.begin([None, None]) is None
    masks = filled(filler, [None, digits, None, letters])
    logits = torch.zeros(4, vocabulary.vocab_size)
    forbid(logits, masks.rows, torch.from_numpy(masks.words))
    for row, words in ((1, masks.words[0]), (3, masks.words[1])):
        assert set(logits[row].isfinite().nonzero()[:, 0].tolist()) == allowed(words)
    assert logits[0].isfinite().all() and logits[2].isfinite().all()
    alone = torch.zeros(2, vocabulary.vocab_size)
    forbid(alone, [0, 1], torch.from_numpy(masks.words))
    assert torch.equal(alone, logits[[1, 3]])
    filler.close()


def test_words_beyond_a_vocabulary_that_is_no_multiple_of_32_are_left_out() -> None:
    logits = torch.zeros(1, 37)
    forbid(logits, [0], torch.tensor([[1 << 3, 1 << 4 | 1 << 20]], dtype=torch.int32))
    assert logits[0].isfinite().nonzero()[:, 0].tolist() == [3, 36]
