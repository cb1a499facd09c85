from pathlib import Path

import pytest

from text.tokenizer import Tokenizer
from worker.guided import Vocabulary
from worker.model.config import read_config

MODELS = Path(__file__).parents[3] / "demo" / "models"
SMALL, LARGE = MODELS / "small", MODELS / "large"


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(LARGE)


@pytest.fixture(scope="session")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    config = read_config(LARGE)
    return Vocabulary(tokenizer, vocab_size=config.vocab_size, eos_token_ids=config.eos_token_ids)
