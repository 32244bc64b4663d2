"""Every page for every role: what it answers, what it costs, and what it never shows."""

import csv
import io
import re
import warnings
from html.parser import HTMLParser

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from capacity.models import Forecast, PlaybookRun, Report
from console.web.csp import CONTENT_SECURITY_POLICY
from console.web.units import parse_usd
from routing.store import keys as store_keys
from tests import factories
from tests.forecasting import make_forecast
from tests.playbooking import make_runs
from tests.reporting import make_report

pytestmark = pytest.mark.django_db

LIST_QUERIES, OTHER_QUERIES = 12, 15
CALLS_OF_TASKS = 8  # the world's two tasks of four calls
HOSTILE_NAME = '=HYPERLINK("http://x.example","pay")'
HOSTILE_KEY = "<img src=x onerror=alert(1)>"
HOSTILE_MODEL = '"><script>alert(1)</script>'

LISTS = (
    "/fleet/",
    "/rollouts/",
    "/inventory/",
    "/inventory/?kind=pool",
    "/inventory/drift/",
    "/overrides/",
    "/overrides/?all=1",
    "/playbooks/",
    "/playbooks/noisy-tenant/",
    "/policies/main/",
    "/tenants/",
    "/tenants/acme/keys/",
    "/t/acme/keys/",
    "/tenants/acme/members/",
    "/t/acme/members/",
    "/people/",
    "/t/acme/usage/",
    "/usage/",
    "/usage/?tenant=acme",
    "/quota-requests/",
    "/t/acme/limits/requests/",
    "/t/acme/requests/",
    "/tenants/acme/requests/",
    "/prices/",
    "/prices/resources/",
    "/prices/pools/",
    "/estimates/",
    "/reconciliation/",
    "/audit/",
    "/jobs/",
    "/capacity/forecast/",
    "/reports/",
)
OTHERS = (
    "/live/",
    "/",
    "/why-p99/",
    "/why-bill/",
    "/tasks/",
    "/tasks/{task}/",
    "/t/acme/tasks/",
    "/t/acme/tasks/{task}/",
    "/carbon/",
    "/slo/",
    "/fleet/pools/p-a/",
    "/rollouts/{rollout}/",
    "/policies/",
    "/policies/main/versions/1/",
    "/tenants/acme/",
    "/t/acme/",
    "/spend/",
    "/spend/?by=model",
    "/spend/?by=key",
    "/system/",
    "/playbooks/noisy-tenant/runs/{run}/",
    "/capacity/lab/",
    "/capacity/lab/?question=eight-gpus",
    "/capacity/forecast/{forecast}/",
    "/reports/{report}/",
    "/me/",
    "/people/{vic}/",
    "/quota-requests/{request}/",
    "/t/acme/spend/",
    "/t/acme/spend/?by=key&of=input&range=day",
    "/t/acme/spend/?by=model&of=output&range=month",
    "/t/acme/requests/?id={refused}",
    "/api/docs/",
)
FORMS = (
    "/carbon/grid/",
    "/carbon/power/",
    "/slo/set/",
    "/slo/{objective}/remove/",
    "/me/password/",
    "/me/tokens/issue/",
    "/new-person/",
    "/people/{vic}/suspend/",
    "/people/{vic}/restore/",
    "/people/{vic}/sign-out/",
    "/people/{vic}/password/",
    "/tenants/acme/members/add/",
    "/t/acme/members/{vic}/role/",
    "/t/acme/members/{vic}/remove/",
    "/policies/main/edit/",
    "/policies/main/versions/1/roll-back/",
    "/new-override/",
    "/playbooks/noisy-tenant/mode/",
    "/new-tenant/",
    "/fleet/limits/",
    "/fleet/pools/p-a/limits/",
    "/fleet/pools/p-a/roll-out/",
    "/inventory/import/",
    "/rollouts/{rollout}/abort/",
    "/rollouts/{rollout}/pause/",
    "/new-price/",
    "/prices/resources/new/",
    "/prices/pools/new/",
    "/reports/new-schedule/",
    "/reports/schedules/daily/",
    "/tenants/acme/suspend/",
    "/tenants/acme/limits/",
    "/tenants/acme/keys/issue/",
    "/tenants/acme/keys/{key}/rotate/",
    "/tenants/acme/keys/{key}/revoke/",
    "/t/acme/limits/requests/ask/",
)
EVERYONE_SIGNED_IN = ("ana", "ola", "ada", "aud", "tina", "vic", "nobody")
SEES_ALL = {"ana", "ola", "ada", "aud"}
MEMBERS = {"tina", "vic"}


@pytest.fixture
def world(store) -> factories.World:
    made = factories.World()
    factories.make_tenant(made, "acme", "Acme Support", zone="Europe/Berlin")
    factories.make_tenant(made, "globex", "Globex Research")
    factories.make_people(made)
    factories.make_fleet(made, {"p-a": 2, "p-b": 1})
    factories.make_policy(made, versions=2)
    factories.make_rollout(made, "p-b")
    factories.make_usage(made, "acme", 3)
    factories.make_tasks(made, "acme", 2)
    factories.make_objective(made)
    factories.make_quota_request(made, "acme")
    factories.make_refusals(made, "acme", 3)
    made.draft = factories.make_draft(made)
    make_runs(made)
    factories.make_single_prices(made, "p-a", 1)
    make_forecast(made, hours=100)
    make_report()
    factories.beat(store)
    factories.scrape(store, "p-a")
    return made


def client_of(world: factories.World, name: str) -> Client:
    client = Client()
    client.force_login(world.people[name])
    return client


def path_of(world: factories.World, path: str) -> str:
    path = path.replace("{vic}", str(world.people["vic"].pk))
    path = path.replace("{forecast}", str(Forecast.objects.latest("pk").pk))
    path = path.replace("{report}", str(Report.objects.latest("pk").pk))
    path = path.replace("{rollout}", str(world.rollouts[0]))
    path = path.replace("{task}", str(world.task_id)).replace(
        "{objective}", str(world.objective_id)
    )
    path = path.replace("{request}", str(world.requests["acme"]))
    path = path.replace("{refused}", world.refusals["acme"][0])
    path = path.replace("{run}", str(PlaybookRun.objects.order_by("id").values_list("pk")[0][0]))
    return path.replace("{key}", str(world.keys["acme"].id))


def expected(name: str, path: str) -> int:  # noqa: PLR0911 - one answer a rule
    """Status that the roles of the console's design give."""
    own = path.startswith(("/t/acme/", "/tenants/acme/"))
    acts = {
        "/reports/new-schedule/": {"ada"},
        "/reports/schedules/daily/": {"ada"},
        "/carbon/grid/": {"ana", "ola", "ada"},
        "/carbon/power/": {"ana", "ola", "ada"},
        "/slo/set/": {"ana", "ola", "ada"},
        "/slo/{objective}/remove/": {"ana", "ola", "ada"},
        "/policies/main/edit/": {"ana", "ada"},
        "/policies/main/versions/1/roll-back/": {"ana", "ada"},
        "/new-override/": {"ana", "ola", "ada"},
        "/playbooks/noisy-tenant/mode/": {"ada"},
        "/new-tenant/": {"ana", "ola", "ada"},
        "/new-price/": {"ada"},
        "/prices/resources/new/": {"ada"},
        "/prices/pools/new/": {"ada"},
        "/fleet/limits/": {"ana", "ola", "ada"},
        "/fleet/pools/p-a/limits/": {"ana", "ola", "ada"},
        "/fleet/pools/p-a/roll-out/": {"ana", "ada"},
        "/inventory/import/": {"ana", "ola", "ada"},
        "/rollouts/{rollout}/abort/": {"ana", "ada"},
        "/rollouts/{rollout}/pause/": {"ana", "ada"},
        "/tenants/acme/suspend/": {"ana", "ola", "ada"},
        "/tenants/acme/limits/": {"ana", "ada", "tina"},
        "/tenants/acme/keys/issue/": {"ana", "ola", "ada", "tina"},
        "/tenants/acme/keys/{key}/rotate/": {"ana", "ola", "ada", "tina"},
        "/tenants/acme/keys/{key}/revoke/": {"ana", "ola", "ada", "tina"},
        "/tenants/acme/members/add/": {"ana", "ola", "ada", "tina"},
        "/t/acme/members/{vic}/role/": {"ana", "ola", "ada", "tina"},
        "/t/acme/members/{vic}/remove/": {"ana", "ola", "ada", "tina"},
        "/t/acme/limits/requests/ask/": {"ana", "ada", "tina"},
    }
    if path.startswith(("/me/", "/api/docs/")):
        return 200
    if path.startswith(("/people/", "/new-person/")):
        return 200 if name == "ada" else 403
    if path in acts:
        if name in acts[path]:
            return 200
        is_absent = own and name == "nobody" and path != "/tenants/acme/suspend/"
        return 404 if is_absent else 403
    if name in SEES_ALL or ((own or path == "/live/") and name in MEMBERS):
        return 200
    if path == "/" and name in MEMBERS:
        return 302
    return 404 if own else 403


@pytest.mark.parametrize("name", EVERYONE_SIGNED_IN)
def test_each_page_answers_each_role_as_designed(world, name):
    client = client_of(world, name)
    answers = {path: client.get(path_of(world, path)) for path in (*LISTS, *OTHERS, *FORMS)}
    found = {path: answer.status_code for path, answer in answers.items()}
    assert found == {path: expected(name, path) for path in answers}
    for path, answer in answers.items():
        assert answer.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY, path
        assert answer.headers["Cache-Control"] == "no-store", path
        assert re.fullmatch(r"[0-9a-f]{16}", answer.headers["X-Request-ID"]), path


def test_without_a_session_every_page_leads_to_sign_in_and_back(world):
    for path in (*LISTS, *OTHERS, *FORMS):
        answer = Client().get(path_of(world, path))
        assert answer.status_code == 302, path
        assert answer.headers["Location"].startswith("/sign-in/?next=/"), path


def test_another_tenants_object_and_none_at_all_look_the_same(world):
    client = client_of(world, "tina")
    bodies = set()
    for slug in ("globex", "no-such"):
        for page in (
            "",
            "keys/",
            "usage/",
            "usage.csv",
            "limits/requests/",
            f"keys/{world.keys['globex'].id}/rotate/",
        ):
            answer = client.get(f"/t/{slug}/{page}")
            assert answer.status_code == 404, (slug, page)
            text = re.sub(r"[0-9a-f]{16}|csrfmiddlewaretoken\S+ value=\S+", "", answer.text)
            bodies.add(re.sub(r'"X-CSRFToken": "\w+"|/t/\S+"', "", text))
    assert len(bodies) == 1


def test_a_key_of_another_tenant_is_not_found_below_the_own_one(world):
    key_id = world.keys["globex"].id
    assert client_of(world, "tina").get(f"/t/acme/keys/{key_id}/revoke/").status_code == 404


def test_members_see_neither_pools_nor_other_tenants(world):
    client = client_of(world, "tina")
    for page in ("", "keys/", "usage/", "tasks/", f"tasks/{world.task_id}/"):
        text = client.get(f"/t/acme/{page}").text
        assert "p-a" not in text
        assert "eu-a-8b-" not in text
        assert "lobex" not in text


def count_queries(client: Client, path: str) -> int:
    with CaptureQueriesContext(
        connection,
    ) as captured:
        answer = client.get(path)
    assert answer.status_code == 200, path
    return len(captured)


def test_queries_stay_inside_the_budget_and_do_not_grow_with_rows(world, store):
    client = client_of(world, "ada")
    paths = (*LISTS, *OTHERS)
    few = {path: count_queries(client, path_of(world, path)) for path in paths}
    factories.make_usage(world, "acme", 60)
    first_task = world.task_id
    factories.make_tasks(world, "acme", 50)
    world.task_id = first_task
    factories.make_members(world, "acme", 50)
    factories.make_refusals(world, "acme", 60)
    for dimension in ("out", "req", "usd"):
        factories.make_quota_request(world, "acme", dimension)
    factories.make_single_prices(world, "p-a", 50)
    for number in range(50):
        factories.make_tenant(world, f"team-{number:02d}")
        factories.make_quota_request(world, f"team-{number:02d}")
    make_runs(world, 60)
    extra = factories.World(keys=world.keys)
    for _ in range(50):
        factories.issue_key(tenant_id=world.tenants["acme"], name="more", actor=factories.ACTOR)
    factories.make_pools(extra, {f"q-{number:02d}": 2 for number in range(50)})
    world.pools += extra.pools[:1]
    for pool in extra.pools:
        factories.make_rollout(world, pool)
    for pool in extra.pools:
        factories.scrape(store, pool)
    many = {path: count_queries(client, path_of(world, path)) for path in paths}
    assert {path for path in paths if many[path] > few[path]} == set()
    assert {path for path in LISTS if many[path] > LIST_QUERIES} == set()
    assert {path for path in OTHERS if many[path] > OTHER_QUERIES} == set()


class Elements(HTMLParser):
    """Elements of a page that a hostile name could have made."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {name for name, _ in attrs}
        if tag == "img" or any(name.startswith("on") for name in names):
            self.found.append(tag)
        is_data = ("type", "application/json") in attrs
        if tag == "script" and "src" not in names and not is_data:
            self.found.append(tag)
        if any((value or "").startswith("http://x.example") for _, value in attrs):
            self.found.append(tag)


def test_hostile_names_are_text_on_every_page_and_in_every_export(store):
    """R39."""
    world = factories.World()
    factories.make_tenant(world, "acme", HOSTILE_NAME, key_name=HOSTILE_KEY)
    factories.make_people(world)
    factories.make_fleet(world, {"p-a": 1, "p-b": 1})
    factories.make_policy(world)
    factories.make_rollout(world, "p-b", reason=HOSTILE_KEY)
    factories.make_usage(
        world, "acme", 2, model_asked=HOSTILE_MODEL, model=HOSTILE_MODEL, error_code="<b>x</b>"
    )
    factories.make_tasks(
        world, "acme", 2, task_id=HOSTILE_KEY, task_kind=HOSTILE_NAME, step=HOSTILE_MODEL,
        model=HOSTILE_MODEL,
    )  # fmt: skip
    factories.make_objective(world, model=HOSTILE_MODEL)
    factories.make_quota_request(world, "acme", reason=HOSTILE_KEY)
    factories.make_refusals(world, "acme", 2, model=HOSTILE_MODEL)
    make_runs(world, label=HOSTILE_KEY, end_reason=HOSTILE_MODEL)
    factories.beat(store)
    factories.scrape(store, "p-a", r0={"health": "hung", "reason": HOSTILE_KEY})
    make_forecast(world, hours=100, model=HOSTILE_MODEL)
    make_report()
    client = client_of(world, "ada")
    for path in (*LISTS, *OTHERS, *FORMS):
        answer = client.get(path_of(world, path))
        assert answer.status_code == 200, path
        assert Elements(answer.text).found == [], path
    assert "&lt;img src=x onerror=alert(1)&gt;" in client.get("/tenants/acme/keys/").text
    assert "&lt;img src=x" in client.get("/fleet/pools/p-a/").text
    for path in ("/usage.csv", "/t/acme/usage.csv", "/audit.csv"):
        rows = exported(client, path)
        assert len(rows) > 1, path
        for row in rows:
            assert not [cell for cell in row if cell[:1] in tuple("=+-@\t\r")], path
    assert HOSTILE_KEY in {cell for row in exported(client, "/usage.csv") for cell in row}


def exported(client: Client, path: str) -> list[list[str]]:
    with warnings.catch_warnings():  # the test client reads an asynchronous stream at once
        warnings.simplefilter("ignore")
        raw = b"".join(client.get(path)).decode()
    return list(csv.reader(io.StringIO(raw, newline="")))


def test_the_export_ends_with_totals_that_its_rows_add_up_to(world):
    rows = exported(client_of(world, "vic"), "/t/acme/usage.csv")
    at = {name: position for position, name in enumerate(rows[0])}
    body, total = rows[1:-1], rows[-1]
    assert total[0] == "total"
    assert len(body) == 3 + CALLS_OF_TASKS
    for name in ("input_tokens", "output_tokens"):
        assert int(total[at[name]]) == sum(int(row[at[name]]) for row in body)
    spent = sum(parse_usd(row[at["spend_usd"]]) for row in body)
    assert parse_usd(total[at["spend_usd"]]) == spent > 0


def test_pages_link_to_the_next_rows_and_show_each_once(world):
    factories.make_usage(world, "acme", 120)
    client = client_of(world, "ana")
    seen: list[str] = []
    address: str | None = "/usage/?tenant=acme"
    pages = 0
    while address:
        text = client.get(address).text
        seen += re.findall(r'title="Request ([0-9a-f-]{36})"', text)
        found = re.search(r'href="([^"]+)" rel="next"', text)
        address = "/usage/" + found.group(1).replace("&amp;", "&") if found else None
        pages += 1
    assert pages == 3
    assert len(seen) == len(set(seen)) == 123 + CALLS_OF_TASKS


def test_a_wrong_filter_is_said_at_once(world):
    client = client_of(world, "ana")
    for query in ("after=zzz", "key=x", "since=yesterday", "status=fine"):
        answer = client.get(f"/usage/?{query}")
        assert answer.status_code == 422, query
    assert client.get("/usage/?tenant=no-such").status_code == 404


def test_htmx_gets_the_same_rows_without_the_frame(world):
    client = client_of(world, "ada")
    for path in LISTS:
        whole = client.get(path)
        part = client.get(path, headers={"HX-Request": "true"})
        assert part.headers["Vary"].startswith("HX-Request") or "HX-Request" in part.headers["Vary"]
        assert "<html" not in part.text, path
        assert 'id="rows"' in part.text, path
        assert "<html" in whole.text, path


def test_a_new_key_is_shown_once_with_its_command(world):
    client = client_of(world, "tina")
    form = client.get("/t/acme/keys/issue/").text
    once = re.search(r'name="idempotency_key" value="([^"]+)"', form).group(1)
    fields = {
        "name": "ci",
        "project_id": re.search(r'<option value="(\d+)"', form).group(1),
        "allowed_models": "*",
        "work_class": "",
        "expires_at": "",
        "idempotency_key": once,
    }
    first = client.post("/t/acme/keys/issue/", fields).text
    secret = re.search(r'id="secret">(hr_\w{8}_[\w-]+)<', first).group(1)
    assert f"Bearer {secret}" in first
    assert secret in client.post("/t/acme/keys/issue/", fields).text  # sent twice: the same key
    listed = client.get("/t/acme/keys/").text
    assert secret not in listed
    assert listed.count(">ci<") == 1


def test_revoking_needs_the_last_characters_of_the_key(world):
    client = client_of(world, "ana")
    key = world.keys["acme"]
    path = f"/tenants/acme/keys/{key.id}/revoke/"
    assert client.post(path, {"confirm": "nope", "reason": "leaked"}).status_code == 422
    assert "● live" in _text(client.get("/tenants/acme/keys/").text)
    done = client.post(path, {"confirm": key.prefix[-4:], "reason": "leaked"})
    assert done.status_code == 302
    assert "revoked" in _text(client.get("/tenants/acme/keys/").text)


def test_publishing_needs_its_words_and_shows_findings_by_path(world):
    client = client_of(world, "ana")
    path = "/policies/main/edit/"
    broken = '{"schema_version": 1, "name": "main", "models": {"nope": {"targets": []}}}'
    refused = client.post(path, {"document": broken, "act": "check", "base": "2"})
    assert refused.status_code == 422
    assert "models.nope" in refused.text
    good = (
        '{"schema_version": 1, "name": "main", "models": '
        '{"llama-8b": {"targets": [{"pool": "p-a", "weight": 7}]}}}'
    )
    fields = {"document": good, "act": "publish", "base": "2", "note": "seven", "confirm": ""}
    fields["tag"] = world.draft
    assert client.post(path, fields).status_code == 422
    assert "main@3" not in client.get("/policies/main/").text
    done = client.post(path, {**fields, "confirm": "publish unrehearsed"})
    assert done.status_code == 302
    assert "main@3" in client.get("/policies/main/").text
    stale = client.post(path, {**fields, "tag": "", "confirm": "publish unrehearsed"})
    assert stale.status_code == 409
    assert "weight&quot;: 7" in stale.text  # nothing typed is lost
    back = "/policies/main/versions/1/roll-back/"
    assert client.post(back, {"confirm": "main", "base": "3", "note": ""}).status_code == 302
    assert "main@4" in client.get("/policies/main/").text


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', "{", "[]", '{"a": NaN}', "[" * 5000])
def test_a_document_that_is_not_one_is_refused_at_its_field(world, text):
    answer = client_of(world, "ana").post(
        "/policies/main/edit/", {"document": text, "act": "check", "base": "2"}
    )
    assert answer.status_code == 422
    assert 'id="id_document_error"' in answer.text


def test_sign_in_is_refused_after_ten_failures_and_only_from_there(world, store):
    user = world.people["ana"]
    user.set_password(factories.PASSWORD)
    user.save()
    for _ in range(10):
        answer = Client().post("/sign-in/", {"username": "ana", "password": "wrong"})
        assert "do not belong together" in answer.text
    right = {"username": "ana", "password": factories.PASSWORD}
    assert "Too many failed attempts" in Client().post("/sign-in/", right).text
    elsewhere = Client(REMOTE_ADDR="192.0.2.9").post("/sign-in/", right)
    assert elsewhere.status_code == 302
    counts = list(store.scan_iter(store_keys.sign_in_failures("*")))
    assert len(counts) == 1
    assert 0 < store.ttl(counts[0]) <= 300


def test_a_success_forgets_the_failures_before_it(world, store):
    user = world.people["ana"]
    user.set_password(factories.PASSWORD)
    user.save()
    for password in [*["wrong"] * 9, factories.PASSWORD] * 2:
        answer = Client().post("/sign-in/", {"username": "ana", "password": password})
    assert answer.status_code == 302


def test_next_never_leaves_the_console(world):
    client = client_of(world, "ana")
    for target in ("//evil.example/", "https://evil.example/", "/\\evil.example"):
        answer = client.post("/theme/", {"theme": "dark", "next": target})
        assert answer.headers["Location"].startswith("/"), target
        assert not answer.headers["Location"].startswith(("//", "/\\")), target


def test_a_page_without_the_store_says_what_is_lost(world, store):
    store.delete(store_keys.GATEWAYS, store_keys.PROCESSES)
    text = _text(client_of(world, "ana").get("/system/").text)
    assert "No gateway reports" in text
    assert "gone ledger" in text


def test_readiness_names_the_part_that_is_away(world, monkeypatch):
    assert Client().get("/readyz").json() == {
        "ready": True,
        "parts": {"database": True, "store": True},
    }
    monkeypatch.setattr("console.pages.health.is_store_up", lambda: False)
    answer = Client().get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["parts"] == {"database": True, "store": False}
    assert Client().get("/healthz").status_code == 200


def _text(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", "", html).split())


def test_a_form_without_its_token_is_refused_as_a_page(world):
    client = Client(enforce_csrf_checks=True)
    client.force_login(world.people["ada"])
    answer = client.post("/tenants/acme/restore/")
    assert answer.status_code == 403
    assert "no longer valid" in answer.text
    assert Elements(answer.text).found == []


def test_a_failing_page_names_its_request_and_asks_nothing_more(world, monkeypatch):
    client = client_of(world, "ada")
    client.raise_request_exception = False
    monkeypatch.setattr("console.pages.system.report", lambda: 1 / 0)
    with CaptureQueriesContext(connection) as captured:
        answer = client.get("/system/", headers={"X-Request-ID": "from-the-proxy"})
    assert answer.status_code == 500
    assert "from-the-proxy" in answer.text
    assert answer.headers["X-Request-ID"] == "from-the-proxy"
    assert answer.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
    assert len(captured) <= 2  # session and person, before it failed


def test_who_may_not_set_limits_of_the_fleet_is_offered_no_link_to_them(world):
    for path, link in (
        ("/fleet/", 'href="/fleet/limits/"'),
        ("/fleet/pools/p-a/", 'href="/fleet/pools/p-a/limits/"'),
    ):
        assert link not in client_of(world, "aud").get(path).text
        assert link in client_of(world, "ola").get(path).text
