"""A batch through the whole platform, by the official client, to what ClickHouse says of it."""

import json

import openai

from tests.support.platform import Platform, wait_until

PROMPTS = {"sum": "What is 17 + 25?", "capital": "What is the capital of France?", "legs": "12 + 30"}
ENDED = ("completed", "failed", "expired", "cancelled")


def test_a_batch_is_answered_as_its_requests_are_and_billed_by_line(client: openai.OpenAI, platform: Platform) -> None:
    lines = [
        {
            "custom_id": name,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "large", "messages": [{"role": "user", "content": prompt}], "temperature": 0},
        }
        for name, prompt in PROMPTS.items()
    ]
    content = "\n".join(json.dumps(line) for line in lines).encode()
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    wait_until(lambda: client.batches.retrieve(batch.id).status in ENDED, deadline_s=120)
    batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed" and batch.output_file_id is not None, batch
    answers = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert [answer["custom_id"] for answer in answers] == list(PROMPTS)
    for answer in answers:
        messages = [{"role": "user", "content": PROMPTS[answer["custom_id"]]}]
        alone = client.chat.completions.create(model="large", messages=messages, temperature=0)  # type: ignore[arg-type]
        assert answer["response"]["body"]["choices"][0]["message"]["content"] == alone.choices[0].message.content

    def rows() -> list[dict[str, object]]:
        return [row for row in platform.usage_rows() if row["batch_id"] == batch.id]

    wait_until(lambda: len(rows()) >= len(PROMPTS), deadline_s=120)
    assert sorted(str(row["request_id"]) for row in rows()) == sorted(
        answer["response"]["request_id"] for answer in answers
    )
    assert {row["client_request_id"] for row in rows()} == set(PROMPTS)
