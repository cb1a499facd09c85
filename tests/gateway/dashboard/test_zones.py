import re

import httpx
import pytest

from gateway.dashboard.typed import MAX_FORM_BYTES
from tests.gateway.dashboard.test_dashboard import open_browser
from tests.support.dashboards import Site


def token_of(browser: httpx.Client) -> str:
    found = re.search(r'name="token" value="([^"]+)"', browser.get("/dashboard/zone").text)
    assert found is not None
    return found[1]


def test_times_are_in_utc_until_the_visitor_chooses_a_zone(site: Site) -> None:
    with open_browser(site, site.acme.key) as browser:
        assert "Times in UTC" in browser.get("/dashboard/requests").text
        sent = {"token": token_of(browser), "zone": "Asia/Kathmandu", "next": "/dashboard/requests?range=7d"}
        reply = browser.post("/dashboard/zone", data=sent)
        assert reply.headers["location"] == "/dashboard/requests?range=7d&notice=zone"
        cookie = reply.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Path=/dashboard" in cookie
        page = browser.get(reply.headers["location"]).text
        assert "Times in Asia/Kathmandu" in page and 'role="status">Times are shown in this zone' in page
        assert "Times in America/New_York" in browser.get("/dashboard?tz=America/New_York").text


@pytest.mark.parametrize("zone", ["", "Mars/Olympus", "../../etc/passwd", "<script>", "UTC\n", "x" * 5000])
def test_what_is_no_zone_is_told_at_the_field_and_a_link_with_it_shows_utc(site: Site, zone: str) -> None:
    with open_browser(site, site.acme.key) as browser:
        reply = browser.post("/dashboard/zone", data={"token": token_of(browser), "zone": zone, "next": "/dashboard"})
        if zone.strip() != "UTC":
            assert reply.status_code == 400 and 'id="p-zone"' in reply.text and 'aria-invalid="true"' in reply.text
        assert "Times in UTC" in browser.get("/dashboard", params={"tz": zone}).text


@pytest.mark.parametrize("token", ["", "made up", "é"])
def test_a_form_without_the_pages_token_does_nothing_and_is_shown_again(site: Site, token: str) -> None:
    with open_browser(site, site.acme.key) as browser:
        reply = browser.post("/dashboard/zone", data={"token": token, "zone": "Europe/Berlin", "next": "/dashboard"})
        assert reply.status_code == 403 and 'value="Europe/Berlin" selected' in reply.text
        assert "set-cookie" not in reply.headers


def test_a_form_from_elsewhere_or_of_any_size_does_nothing(site: Site) -> None:
    with open_browser(site, site.acme.key) as browser:
        sent = {"token": token_of(browser), "zone": "Europe/Berlin", "next": "/dashboard"}
        for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}):
            assert browser.post("/dashboard/zone", data=sent, headers=headers).status_code == 403
        assert browser.post("/dashboard/zone", data={**sent, "more": "x" * MAX_FORM_BYTES}).status_code == 413
        assert browser.post("/dashboard/zone", content="&".join(["a=1"] * 2000)).status_code == 413
        assert browser.post("/dashboard/zone", data={**sent, "next": "//evil.example"}).headers["location"] == (
            "/dashboard?notice=zone"
        )
    with open_browser(site) as nobody:
        refused = nobody.post("/dashboard/zone", data=sent)
        assert refused.status_code == 401 and "set-cookie" not in refused.headers


@pytest.mark.parametrize("notice", ["<script>", "nothing", "saved%22"])
def test_a_link_cannot_make_up_a_notice(site: Site, notice: str) -> None:
    with open_browser(site, site.acme.key) as browser:
        assert 'role="status"' not in browser.get(f"/dashboard?notice={notice}").text
