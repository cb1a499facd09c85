"""What a tenant chooses for its sessions."""

from pathlib import Path

from tests.support.gateways import make_settings, running_gateway
from tests.support.valkey import ValkeyProcess


async def test_a_tenants_administrator_chooses_for_its_own_tenant_alone(tmp_path: Path, valkey: ValkeyProcess) -> None:
    async with running_gateway(make_settings(tmp_path, valkey.url)) as gateway:
        tenants = [await gateway.post("/tenants", {"name": name, "tier": "pro"}) for name in ("a", "b")]
        mine, theirs = (f"{gateway.origin}/admin/v1/tenants/{tenant['id']}/sessions" for tenant in tenants)
        draft = {"tenant_id": tenants[0]["id"], "name": "k", "scopes": ["tenant-admin"]}
        key = (await gateway.post("/keys", draft))["key"]
        async with gateway.client(key) as client:
            assert (await client.get(mine)).json() == {"overflow": "window", "is_encrypted": False, "version": 0}
            changed = await client.patch(mine, json={"overflow": "summary"})
            assert changed.json() == {"overflow": "summary", "is_encrypted": False, "version": 1}
            assert (await client.patch(mine, json={"is_encrypted": True})).json()["overflow"] == "summary"
            for wrong in ({"overflow": "none"}, {"unknown": 1}, {"is_encrypted": None}):
                assert (await client.patch(mine, json=wrong)).status_code == 400
            assert (await client.get(theirs)).status_code == 404
            assert (await client.patch(theirs, json={"overflow": "summary"})).status_code == 404
        entries = (await gateway.admin.get("/audit", params={"tenant_id": tenants[0]["id"]})).json()["data"]
        changes = [entry["detail"] for entry in entries if entry["action"] == "sessions.change"]
        assert {"overflow": "summary"} in changes and {"is_encrypted": True} in changes
        # The tenant goes with its key.
        assert (await gateway.admin.delete(f"/tenants/{tenants[0]['id']}")).status_code == 204
        assert (await gateway.admin.get(mine)).status_code == 404
