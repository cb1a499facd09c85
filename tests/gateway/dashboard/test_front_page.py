from pathlib import Path

import httpx

from tests.support.gateways import make_settings, running_gateway


async def test_the_root_leads_browsers_to_the_console_and_others_nowhere(tmp_path: Path) -> None:
    async with (
        running_gateway(make_settings(tmp_path, "redis://127.0.0.1:9")) as gateway,
        httpx.AsyncClient(base_url=gateway.origin) as client,
    ):
        led = await client.get("/", headers={"accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"})
        assert (led.status_code, led.headers["location"]) == (307, "/dashboard")
        other = await client.get("/", headers={"accept": "*/*"})
        assert (other.status_code, other.json()["error"]["code"]) == (404, "not_found")
