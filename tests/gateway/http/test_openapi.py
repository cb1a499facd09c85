"""The description covers what is served, and every reference in it leads somewhere."""

import re
from pathlib import Path

import msgspec

from tests.support.gateways import make_settings, running_gateway
from tests.support.valkey import ValkeyProcess


async def test_the_description_is_whole(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with running_gateway(make_settings(tmp_path, valkey.url)) as gateway:
        text = (await gateway.admin.get(f"{gateway.origin}/openapi.json")).text
    document = msgspec.json.decode(text)
    served = {"/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/usage", "/admin/v1/tenants"}
    assert served <= set(document["paths"])
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(re.findall(r'"\$ref":"([^"]+)"', text)) <= known
