"""The live page of a running demo, in a real browser."""

import math
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import httpx
import psycopg
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHARTS = ("#chart-ttft", "#chart-spend", "#chart-kv")
READ_WITHIN_S = 20


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium)
        yield launched
        launched.close()


@pytest.fixture
def live(browser: Browser, stack: Any) -> Iterator[Page]:
    """The live page, signed in as the operator; nothing may be written to its console."""
    context = browser.new_context(viewport={"width": 1280, "height": 1200})
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    operator = stack.credentials["operator"]
    page.goto(f"{stack.console_url}/sign-in/?next=/live/")
    page.get_by_label("Username").fill(operator["username"])
    page.get_by_label("Password").fill(operator["password"])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/live/")
    expect(page.locator("#live-state")).to_contain_text("live", timeout=READ_WITHIN_S * 1000)
    yield page
    context.close()
    lost = [text for text in said if "WebSocket" not in text and "Failed to load" not in text]
    assert lost == []


def pixels(page: Page, chart: str) -> bytes:
    """What a chart's canvas shows."""
    return page.locator(f"{chart} canvas").screenshot()


def until(condition: Callable[[], Any], what: str, timeout_s: float = READ_WITHIN_S) -> Any:
    """Poll without blocking the browser's events."""
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < end, f"no {what} within {timeout_s} s"
        time.sleep(0.1)
    return value


def cells(page: Page, table: str, field: str) -> dict[str, str]:
    """Raw values of a column by the row's first cell."""
    found = {}
    for row in page.locator(f"table[data-live={table}] tbody tr").all():
        name = row.locator("th").inner_text()
        found[name] = row.locator(f"[data-field={field}]").get_attribute("data-value") or ""
    return found


def test_the_three_charts_move_and_say_what_they_show(live: Page) -> None:
    for name in ("Time to first token, ms", "Spend by tenant, USD", "KV occupancy by replica, %"):
        expect(live.get_by_role("heading", name=name)).to_be_visible()
    before = {chart: pixels(live, chart) for chart in CHARTS}
    for chart in CHARTS:
        until(lambda chart=chart: pixels(live, chart) != before[chart], f"change of {chart}")
    for label in ("Time to first token over", "Spend by tenant over", "KV occupancy by replica"):
        expect(live.get_by_role("img", name=re.compile(label))).to_be_visible()
    expect(live.get_by_text("accept to first token, first tokens of the last 60 s")).to_be_visible()
    expect(live.get_by_text(re.compile("Updated . s ago")).first).to_be_visible()


def test_stale_appears_when_the_collector_stops_and_goes_when_it_is_back(
    live: Page, stack: Any
) -> None:
    pid = stack.process("collector")["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        expect(live.locator("#live-state")).to_contain_text("stale", timeout=15_000)
        expect(live.locator("#live-page.has-stale")).to_be_visible()
        expect(live.locator("#live-banner")).to_be_hidden()
        expect(live.locator("#kv-summary")).to_contain_text("fresh: 0 of")
        ages = live.locator("table[data-live=replicas] tbody [data-field=age]")
        expect(ages.first).to_have_text(re.compile("◌ .* old"))
    finally:
        os.kill(pid, signal.SIGCONT)
    expect(live.locator("#live-state")).to_contain_text("live", timeout=30_000)
    # A killed collector may be back before its figures count as stale: what must follow is a
    # new process, a page that is live, and charts that move.
    os.kill(pid, signal.SIGKILL)
    until(lambda: stack.process("collector")["pid"] not in (pid, None), "new collector", 60)
    expect(live.locator("#live-state")).to_contain_text("live", timeout=60_000)
    before = pixels(live, "#chart-kv")
    until(lambda: pixels(live, "#chart-kv") != before, "movement after the restart")


def test_a_lost_console_is_announced_and_the_page_recovers_by_itself(
    live: Page, stack: Any
) -> None:
    os.kill(stack.process("console")["pid"], signal.SIGKILL)
    banner = live.locator("#live-banner")
    expect(banner).to_be_visible(timeout=15_000)
    expect(banner).to_contain_text("Disconnected. Last figures")
    expect(live.locator("#live-state")).to_contain_text(re.compile("disconnected|polling"))
    expect(banner).to_be_hidden(timeout=90_000)
    expect(live.locator("#live-state")).to_contain_text("live", timeout=30_000)


def test_a_signed_out_tab_stops_and_says_so(live: Page) -> None:
    other = live.context.new_page()
    other.goto(live.url)
    other.locator("button[popovertarget=account]").click()
    other.get_by_role("button", name="Sign out").click()
    expect(live.locator("#live-banner")).to_contain_text("Signed out", timeout=10_000)
    expect(live.get_by_role("link", name="Sign in")).to_be_visible()


PROBE = """
from console.audit.rules import SYSTEM
from tenants.directory.services import create_tenant
from tenants.keys.services import issue_key
tenant_id = create_tenant(slug="probe", name="Probe", actor=SYSTEM)
print("SECRET", issue_key(tenant_id=tenant_id, name="probe", actor=SYSTEM).secret)
"""
PROBES = 40
AT_ONCE = 2  # few, so that the client measures the gateway and not its own threads


def new_tenant(stack: Any) -> str:
    """The secret of a key of tenant `probe`, which nobody else uses."""
    done = subprocess.run(
        [stack.python, str(stack.root / "manage.py"), "shell", "-c", PROBE],
        env={**stack.environment, **stack.settings, "HEADRACE_STATE": str(stack.state)},
        cwd=stack.root,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found = re.search(r"SECRET (\S+)", done.stdout)
    assert found, done.stdout + done.stderr
    return found[1]


def time_to_first_token(client: httpx.Client, stack: Any, secret: str, model: str) -> float | None:
    """Seconds from sending to the first token, as a client sees it; None while the key is new."""
    body = {
        "model": model,
        "stream": True,
        "max_tokens": 8,
        "messages": [{"role": "user", "content": "How much water does the mill take?"}],
    }
    began = time.perf_counter()
    first = None
    with client.stream(
        "POST",
        f"{stack.gateway_url}/v1/chat/completions",
        json=body,
        headers={"authorization": f"Bearer {secret}"},
    ) as answer:
        if answer.status_code == 401:
            return None
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if first is None and '"content":"' in line.replace(" ", "") and '""' not in line:
                first = time.perf_counter() - began
    assert first is not None
    return first


def ledger_ttft_ms(stack: Any, slug: str) -> list[float]:
    """Milliseconds to the first token of a tenant's rows, the shortest first."""
    with psycopg.connect(stack.settings["DATABASE_URL"]) as connection:
        rows = connection.execute(
            "SELECT extract(epoch FROM first_token_at - started_at) * 1000 AS ms"
            " FROM tenants_usage u JOIN tenants_tenant t ON t.id = u.tenant_id"
            " WHERE t.slug = %s ORDER BY ms",
            [slug],
        ).fetchall()
    return [float(ms) for (ms,) in rows]


def ledger_nanousd(stack: Any, slug: str) -> tuple[int, int]:
    """Rows and nano-dollars of a tenant in the ledger."""
    with psycopg.connect(stack.settings["DATABASE_URL"]) as connection:
        row = connection.execute(
            "SELECT count(*), coalesce(sum(u.spend_nanousd), 0)::bigint FROM tenants_usage u"
            " JOIN tenants_tenant t ON t.id = u.tenant_id WHERE t.slug = %s",
            [slug],
        ).fetchone()
    assert row is not None
    return row[0], row[1]


def test_ttft_and_spend_on_the_page_equal_client_timings_and_ledger_rows(
    live: Page, stack: Any
) -> None:
    secret = new_tenant(stack)
    model = stack.credentials["demo_callers"][0]["model"]
    with (
        httpx.Client(timeout=30, trust_env=False) as client,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):

        def ask(_: int = 0) -> float | None:
            return time_to_first_token(client, stack, secret, model)

        first = until(ask, "snapshot with the key", 60)
        timings_s = sorted(
            [first, *(timing for timing in pool.map(ask, range(PROBES - 1)) if timing)]
        )
    assert len(timings_s) == PROBES

    live.goto(f"{stack.console_url}/live/?tenant=probe")

    def reading(name: str) -> str:
        return live.locator(f"[data-reading={name}]").get_attribute("data-value") or ""

    until(lambda: reading("ttft_count") == str(PROBES), "all samples on the page")
    until(lambda: ledger_nanousd(stack, "probe")[0] == PROBES, "all rows in the ledger")
    rows_ms = ledger_ttft_ms(stack, "probe")
    for name, q in (("ttft_p50_ms", 0.5), ("ttft_p95_ms", 0.95), ("ttft_p99_ms", 0.99)):
        at = math.floor(q * (PROBES - 1))
        # The sketch is within 1 %, and rows keep milliseconds.
        assert float(reading(name)) == pytest.approx(rows_ms[at], rel=0.02, abs=2), name
        # The client's own clock adds the way to the gateway and back, and on a busy machine its
        # own waits: the slowest of its calls may be slow by them alone.
        assert float(reading(name)) <= timings_s[at] * 1000 * 1.02 + 2, name
    assert float(reading("ttft_p50_ms")) == pytest.approx(
        timings_s[(PROBES - 1) // 2] * 1000, rel=0.02, abs=25
    )
    spent = ledger_nanousd(stack, "probe")[1]
    assert spent > 0

    def shown_nanousd() -> Decimal:
        return Decimal(cells(live, "tenants", "spend_usd")["probe"]) * 10**9

    until(lambda: shown_nanousd() == spent, f"spend of {spent} nano-dollars on the page", 5)


def test_kv_on_the_page_is_what_the_engines_metrics_say(live: Page, stack: Any) -> None:
    with psycopg.connect(stack.settings["DATABASE_URL"]) as connection:
        engines = connection.execute(
            "SELECT name, host, port FROM capacity_replica WHERE removed_at IS NULL AND port > 0"
        ).fetchall()
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name, _, _ in engines}
    pattern = re.compile(r"^vllm:kv_cache_usage_perc(?:\{[^}]*\})? (\S+)", re.MULTILINE)

    def is_equal() -> bool:
        """Whether each shown value lies between those that its engine showed just before."""
        for name, host, port in engines:
            page = httpx.get(f"http://{host}:{port}/metrics", timeout=5, trust_env=False).text
            found = pattern.search(page)
            assert found, page[:200]
            seen[name].append((time.monotonic(), float(found[1])))
        shown = cells(live, "replicas", "kv_usage_ratio")
        since = time.monotonic() - 4
        recent = {name: [v for at, v in values if at >= since] for name, values in seen.items()}
        assert shown.keys() == recent.keys()
        return len(seen[engines[0][0]]) > 20 and all(
            min(recent[name]) - 0.001 <= float(value) <= max(recent[name]) + 0.001
            for name, value in shown.items()
        )

    until(is_equal, "equal KV occupancy", 40)
    assert any(value > 0 for values in seen.values() for _, value in values)
