import csv
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path

import httpx
import pytest

from gateway.dashboard.cookies import COOKIE
from gateway.dashboard.login_brake import MAX_FAILURES
from tests.support.dashboards import Site, running_site


@contextmanager
def open_browser(site: Site, key: str | None = None) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=site.origin, timeout=30) as browser:
        if key is not None:
            reply = browser.post("/dashboard/login", data={"key": key})
            assert (reply.status_code, reply.headers["location"]) == (303, "/dashboard"), reply.text
        yield browser


def test_without_a_login_there_is_only_the_login_page(site: Site) -> None:
    with open_browser(site) as browser:
        reply = browser.get("/dashboard")
        assert (reply.status_code, reply.headers["location"]) == (303, "/dashboard/login")
        assert 'type="password"' in browser.get("/dashboard/login").text


def test_a_tenant_sees_its_own_and_nothing_of_another(site: Site) -> None:
    with open_browser(site, site.acme.key) as browser:
        for path in ("/dashboard", f"/dashboard?tenant={site.hobby.id}", "/dashboard?metric=cost_nanousd&range=30d"):
            page = browser.get(path).text
            assert "the-small-model" in page and "acme" in page and "$3.00" in page
            assert "voice-of-enterprise" in page and "voice-of-free" not in page
            assert "the-large-model" not in page and "hobby" not in page and str(site.hobby.id) not in page


def test_a_platform_admin_sees_all_tenants_by_name_and_each_alone(site: Site) -> None:
    with open_browser(site, site.admin_key) as browser:
        page = browser.get("/dashboard?by=tenant").text
        assert "by tenant" in page and "the-small-model" in page and "the-large-model" in page
        assert "$23.00" in page and "acme" in page and "hobby &lt;b&gt;" in page
        alone = browser.get(f"/dashboard?tenant={site.hobby.id}").text
        assert "the-large-model" in alone and "the-small-model" not in alone and "$20.00" in alone
        assert "voice-of-free" in alone


def links_to_requests(page: str) -> list[str]:
    return re.findall(r'href="(/dashboard/requests/[^"?]+)"', page)


def test_a_request_is_shown_with_its_whole_way_to_its_own_tenant_alone(site: Site) -> None:
    with open_browser(site, site.acme.key) as browser:
        [path] = links_to_requests(browser.get("/dashboard/requests?range=7d&status=error").text)
        page = browser.get(path).text
        for told in ("upstream_failed", "the worker broke off", "0.750", "worker-1", "limits passed", "$0.0000012"):
            assert told in page, told
    with open_browser(site, site.hobby.key) as browser:
        reply = browser.get(path)
        assert reply.status_code == 404 and "broke off" not in reply.text and "<h1>" in reply.text
    with open_browser(site, site.admin_key) as browser:
        assert "broke off" in browser.get(path).text


@pytest.mark.parametrize(
    ("query", "num_found"),
    [
        ("", 4),
        ("&status=error", 1),
        ("&code=upstream_failed", 1),
        ("&model=the-small-model", 3),
        ("&model=the-small", 0),
        ("&adapter=voice-of-enterprise", 3),
        ("&reason=simple", 4),
        ("&user=%3Cscript%3E", 3),
        ("&slower_ms=1000", 0),
        ("&tenant=nonsense", 4),
    ],
)
def test_requests_are_found_by_what_they_are(site: Site, query: str, num_found: int) -> None:
    with open_browser(site, site.acme.key) as browser:
        page = browser.get(f"/dashboard/requests?range=7d{query}").text
        assert len(links_to_requests(page)) == num_found


def test_many_requests_are_shown_by_pages_and_given_as_csv(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.dashboard.request_list.PAGE_SIZE", 2)
    with open_browser(site, site.admin_key) as browser:
        path, seen = "/dashboard/requests?range=7d", []
        while path:
            page = browser.get(path).text
            seen += links_to_requests(page)
            older = re.search(r'href="([^"]+)" rel="next"', page)
            path = unescape(older[1]) if older else ""
        assert len(seen) == len(set(seen)) == 7
        reply = browser.get("/dashboard/requests.csv?range=7d")
    rows = list(csv.DictReader(io.StringIO(reply.text)))
    assert "attachment" in reply.headers["content-disposition"] and len(rows) == 7
    assert {row["user_id"] for row in rows} == {"<script>", "'=1+1"}, "no cell is a formula"


@pytest.mark.parametrize(
    "path",
    ["/dashboard/nowhere", "/dashboard/requests/x", "/dashboard/requests/01a20640-0521-7b3a-8691-a160bbf43c71"],
)
def test_what_is_not_there_is_a_page_that_leads_back(site: Site, path: str) -> None:
    with open_browser(site, site.acme.key) as browser:
        reply = browser.get(path)
        assert reply.status_code == 404 and 'href="/dashboard"' in reply.text


@pytest.mark.parametrize(
    "query", ["from=yesterday", "from=2026-02-01&to=2026-01-01", "status=odd", "slower_ms=-1", "slower_ms=²", "after=x"]
)
def test_a_page_says_what_it_cannot_be_asked(site: Site, query: str) -> None:
    with open_browser(site, site.acme.key) as browser:
        reply = browser.get(f"/dashboard/requests?{query}")
        assert reply.status_code == 400 and 'role="alert"' in reply.text


@pytest.mark.parametrize(
    "next", ["https://evil.example/dashboard", "//evil.example/dashboard", "/\\evil.example", "/v1/models", "x", ""]
)
def test_a_login_leads_nowhere_else(site: Site, next: str) -> None:
    with httpx.Client(base_url=site.origin, timeout=30) as browser:
        reply = browser.post("/dashboard/login", data={"key": site.acme.key, "next": next})
        assert (reply.status_code, reply.headers["location"]) == (303, "/dashboard")


@pytest.mark.parametrize("metric", ["requests", "tokens", "cost_nanousd", "nonsense"])
@pytest.mark.parametrize("span", ["1h", "24h", "7d", "30d", "nonsense"])
def test_every_view_has_a_chart_with_figures(site: Site, metric: str, span: str) -> None:
    with open_browser(site, site.admin_key) as browser:
        reply = browser.get("/dashboard", params={"metric": metric, "range": span})
        assert reply.status_code == 200
        assert len(re.findall(r'<rect class="bar s\d"[^>]*><title>[^<]+: [^<]+</title>', reply.text)) >= 2


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kathmandu"])
@pytest.mark.parametrize("span", ["range=1h", "range=24h", "range=7d", "range=30d", "from=2020-01-01"])
def test_a_chart_counts_each_request_once_in_every_zone(site: Site, zone: str, span: str) -> None:
    with open_browser(site, site.acme.key) as browser:
        page = browser.get(f"/dashboard?{span}&tz={zone}").text
    bars = re.findall(r'<rect class="bar s\d"[^>]*><title>([^<]+) · [^<]+: (\d+)</title>', page)
    assert sum(int(count) for _, count in bars) == (3 if span in ("range=1h", "range=24h") else 4)
    assert all(label.endswith(f" {zone}") for label, _ in bars)
    if span == "range=30d" and zone in ("UTC", "Europe/Berlin"):
        assert all(f", 00:00 {zone}" in label for label, _ in bars)


def test_what_others_named_is_never_markup(site: Site) -> None:
    with open_browser(site, site.admin_key) as browser:
        page = browser.get("/dashboard").text + browser.get(f"/dashboard?tenant={site.hobby.id}&range='\"><b>").text
        assert "&lt;script&gt;" in page
        assert "<script>" not in page and "hobby <b>" not in page


def test_the_page_may_load_nothing_from_elsewhere_and_run_nothing_but_our_files(site: Site) -> None:
    with open_browser(site, site.acme.key) as browser:
        reply = browser.get("/dashboard")
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "script-src 'self';" in policy and "unsafe" not in policy
        assert re.findall(r"<script(?! src=\"/dashboard/static/)", reply.text) == []
        assert reply.headers["cache-control"] == "no-store"
        assert " style=" not in reply.text and "http" not in re.sub(r"xmlns='[^']+'", "", reply.text)


def test_styles_and_scripts_are_kept_under_their_digest_and_nothing_else_is_served(site: Site) -> None:
    with open_browser(site, site.acme.key) as browser:
        urls = re.findall(r'"(/dashboard/static/[^"]+)"', browser.get("/dashboard").text)
        assert len(urls) == 2
        for url in urls:
            reply = browser.get(url)
            assert reply.headers["content-type"].startswith("text/") and "immutable" in reply.headers["cache-control"]
            assert browser.get(url.partition("?")[0]).headers["cache-control"] == "no-cache"
        for name in ("nothing.css", "..%2Froutes.py", "style.css%00"):
            assert browser.get(f"/dashboard/static/{name}").status_code == 404


def test_the_cookie_is_closed_to_scripts_and_holds_no_key(site: Site) -> None:
    with open_browser(site) as browser:
        cookie = browser.post("/dashboard/login", data={"key": site.acme.key}).headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Path=/dashboard" in cookie and "Max-Age" in cookie
    assert site.acme.key not in cookie and site.acme.key.split("-", 2)[2] not in cookie


def test_a_cookie_that_was_changed_logs_nobody_in(site: Site) -> None:
    with open_browser(site, site.acme.key) as browser:
        value = browser.cookies[COOKIE]
        for forged in (value[:-2] + "AA", "x" + value, "nonsense"):
            reply = httpx.get(f"{site.origin}/dashboard", cookies={COOKIE: forged})
            assert reply.status_code == 303


def test_logging_out_needs_the_pages_own_form(site: Site) -> None:
    with open_browser(site, site.acme.key) as browser:
        token = re.search(r'name="token" value="([^"]+)"', browser.get("/dashboard").text)
        assert token is not None
        browser.post("/dashboard/logout", data={"token": "made up"})
        browser.post("/dashboard/logout", data={"token": token[1]}, headers={"Sec-Fetch-Site": "cross-site"})
        assert browser.get("/dashboard").status_code == 200
        browser.post("/dashboard/logout", data={"token": token[1]})
        assert browser.get("/dashboard").status_code == 303


@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}])
def test_another_sites_form_cannot_log_in(site: Site, headers: dict[str, str]) -> None:
    with open_browser(site) as browser:
        reply = browser.post("/dashboard/login", data={"key": site.acme.key}, headers=headers)
        assert reply.status_code == 403 and COOKIE not in browser.cookies


def test_wrong_keys_are_told_so_and_then_braked(tmp_path: Path) -> None:
    with running_site(tmp_path, None) as site, open_browser(site) as browser:
        for key in ["", "tg-aaaaaaaa-" + "b" * 43, site.acme.key[:-1], "x" * 20_000]:
            reply = browser.post("/dashboard/login", data={"key": key})
            assert reply.status_code == 401 and (
                "wrong or was revoked" in reply.text or "Enter an API key" in reply.text
            )
        # One of these counts: a key of another form than ours, in a form that is not too large.
        for _ in range(MAX_FAILURES - 1):
            assert browser.post("/dashboard/login", data={"key": "wrong"}).status_code == 401
        reply = browser.post("/dashboard/login", data={"key": "wrong"})
        assert reply.status_code == 429 and int(reply.headers["retry-after"]) > 0
        # Who guesses locks nobody else out.
        assert browser.post("/dashboard/login", data={"key": "tg-aaaaaaaa-" + "c" * 43}).status_code == 429
        assert browser.post("/dashboard/login", data={"key": site.acme.key}).status_code == 303


def test_wrong_keys_of_our_own_form_brake_nobody(tmp_path: Path) -> None:
    with running_site(tmp_path, None) as site, open_browser(site) as browser:
        for number in range(MAX_FAILURES + 1):
            reply = browser.post("/dashboard/login", data={"key": f"tg-aaaaaaaa-{number:043}"})
            assert reply.status_code == 401
        assert browser.post("/dashboard/login", data={"key": "chosen by an operator"}).status_code == 401


def test_a_revoked_key_ends_the_visit(tmp_path: Path) -> None:
    with running_site(tmp_path, None) as site, open_browser(site, site.acme.key) as browser:
        assert browser.get("/dashboard").status_code == 503
        site.revoke(site.acme)
        assert browser.get("/dashboard").status_code == 303


def test_without_clickhouse_the_page_says_that_usage_cannot_be_read(tmp_path: Path) -> None:
    with running_site(tmp_path, "http://127.0.0.1:1") as site, open_browser(site, site.acme.key) as browser:
        reply = browser.get("/dashboard")
        assert reply.status_code == 503 and "cannot be read at the moment" in reply.text


def usage(site: Site, path: str, key: str, **query: str) -> httpx.Response:
    return httpx.get(f"{site.origin}{path}", params=query, headers={"Authorization": f"Bearer {key}"}, timeout=30)


def test_the_usage_routes_answer_a_tenant_with_its_own(site: Site) -> None:
    rows = usage(site, "/v1/usage", site.acme.key, group_by="request").json()["data"]
    assert {row["tenant_id"] for row in rows} == {str(site.acme.id)} and len(rows) == 3
    assert usage(site, "/v1/usage", site.acme.key, tenant_id=str(site.hobby.id)).json()["data"][0]["requests"] == 3


def test_the_usage_routes_answer_an_admin_with_all_or_one(site: Site) -> None:
    everybody = usage(site, "/admin/v1/usage", site.admin_key, group_by="tenant").json()
    assert {row["tenant_id"]: row["cost_nanousd"] for row in everybody["data"]} == {
        str(site.acme.id): 3 * 10**9,
        str(site.hobby.id): 2 * 10**10,
    }
    assert everybody["next"] is None
    one = usage(site, "/admin/v1/usage", site.admin_key, group_by="pool", tenant_id=str(site.hobby.id)).json()
    assert one["data"][0]["requests"] == 2


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"from": "yesterday"}, "from"),
        ({"to": "?"}, "to"),
        ({"group_by": "colour"}, "group_by"),
        ({"limit": "0"}, "limit"),
        ({"after": "x"}, "after"),
    ],
)
def test_a_bad_question_is_a_400_that_names_the_parameter(site: Site, query: dict[str, str], param: str) -> None:
    reply = usage(site, "/v1/usage", site.acme.key, **query)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_usage_needs_a_key_and_the_admin_route_an_admins(site: Site) -> None:
    assert usage(site, "/v1/usage", "wrong").status_code == 401
    assert usage(site, "/admin/v1/usage", site.acme.key).status_code == 403
