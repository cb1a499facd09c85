"""A checkpoint's sampling defaults for fields that a request leaves out: generation_config.json."""

from pathlib import Path

import msgspec


class SamplingDefaults(msgspec.Struct, frozen=True):
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int | None = None
    """None: the rest of the window."""


def read_defaults(folder: Path) -> SamplingDefaults:
    """Fields that the file omits or sets to null take OpenAI's defaults. Raises ValueError naming the file."""
    path = folder / "generation_config.json"
    if not path.is_file():
        return SamplingDefaults()
    try:
        said = msgspec.json.decode(path.read_bytes(), type=dict[str, object])
        known = {name: value for name, value in said.items() if value is not None}
        if known.get("do_sample") is False:
            # Hugging Face's notation for greedy sampling; a temperature beside it has no meaning there.
            known["temperature"] = 0.0
        return msgspec.convert(known, SamplingDefaults)
    except (OSError, msgspec.MsgspecError) as error:
        raise ValueError(f"{path}: {error}") from error
