"""How OpenAI's fields of files, batches and stored responses that are not fully supported are treated."""

from protocol.openai_fields import FieldTable
from protocol.responses_fields import RESPONSES

_NO_STREAM = "a kept response is shown whole; leave it out"

STORED = FieldTable(
    {},
    {"include": RESPONSES.refused["include"], "include_obfuscation": _NO_STREAM, "starting_after": _NO_STREAM},
    {
        "stream": f"only false: {_NO_STREAM}",
        "purpose": 'only "batch", and to list "batch_output"',
        "completion_window": 'only "24h"',
        "endpoint": "`/v1/chat/completions`, `/v1/completions` or `/v1/embeddings`",
    },
    {"expires_after": "30 days by default", "output_expires_after": "30 days by default", "file": "up to 200 MB"},
)
