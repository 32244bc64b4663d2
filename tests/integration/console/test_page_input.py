"""What a page does with an address or a form that it cannot read: it says so, and what is wrong."""

import pytest
from django.test import Client

from tests import factories
from tests.factories import World

pytestmark = pytest.mark.django_db

PATHS_WITH_NUL = ("/fleet/pools/%00/", "/fleet/pools/p-a%00/", "/tenants/%00/", "/%00")
QUERIES_WITH_NUL = (
    "/tenants/?from=%00",
    "/tenants/?after=%00",
    "/prices/?model=%00",
    "/new-price/?model=%00",
    "/usage/?model=%00",
    "/usage/?tenant=%00",
    "/usage/?after=%00",
    "/usage.csv?model=a%00b",
    "/t/acme/usage/?model=%00",
    "/audit/?type=%00",
    "/audit/?id=%00",
    "/jobs/?kind=%00",
    "/fleet/?after=%00",
    "/spend/?tenant=%00",
    "/live/?tenant=%00",
    "/live/?%00=1",
)
UNREADABLE = {
    "/usage/?from=zzz&to=-1": "from",
    "/usage/?since=zzz": "since",
    "/usage/?until=-1": "until",
    "/usage/?since=2025-11-29&until=2025-11-01": "until",
    "/usage/?key=abc": "key",
    "/usage/?status=fine": "status",
    "/usage.csv?to=1": "to",
    "/t/acme/usage/?tenant=globex": "tenant",
    "/spend/?window=zz": "window",
    "/spend/?range=zz": "range",
    "/spend/?by=zz": "by",
    "/audit/?after=zz": "after",
    "/audit/?actor=ana": "actor",
    "/prices/?modle=x": "modle",
    "/tenants/?q=x": "q",
    "/tenants/acme/keys/?after=zz": "after",
    "/policies/main/?after=zz": "after",
    "/jobs/?state=zz": "state",
    "/jobs/?after=zz": "after",
    "/fleet/?pool=x": "pool",
    "/live/?model=x": "model",
}


@pytest.fixture
def client(store) -> Client:
    world = World()
    factories.make_tenant(world, "acme")
    factories.make_people(world)
    factories.make_fleet(world, {"p-a": 1})
    factories.make_policy(world)
    client = Client()
    client.force_login(world.people["ada"])
    return client


@pytest.mark.parametrize("path", PATHS_WITH_NUL)
def test_an_address_with_a_nul_is_no_page(client, path):
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("path", QUERIES_WITH_NUL)
def test_a_parameter_with_a_nul_is_refused_by_name(client, path):
    answer = client.get(path)
    assert answer.status_code == 422
    name = path.partition("?")[2].partition("=")[0].replace("%00", "␀")
    assert f"{name}: a NUL" in answer.text


@pytest.mark.parametrize(
    "path",
    ["/new-tenant/", "/new-price/", "/policies/main/edit/", "/tenants/acme/limits/", "/theme/"],
)
def test_a_form_with_a_nul_is_refused_by_name(client, path):
    answer = client.post(path, {"name": "x\x00", "next": "/"})
    assert answer.status_code == 422
    assert "name: a NUL" in answer.text


@pytest.mark.parametrize(
    ("text", "said"),
    [("\x1b[31mred", "U+001B"), ("abc\u202egnp.exe", "U+202E"), ("x\x85y", "U+0085")],
)
def test_a_text_that_cannot_be_shown_is_refused_at_its_field(client, text, said):
    for path, field in (
        ("/new-tenant/", "name"),
        ("/new-person/", "username"),
        ("/tenants/acme/suspend/", "reason"),
        ("/policies/main/edit/", "note"),
        ("/inventory/import/?kind=region", "csv"),
    ):
        answer = client.post(path, {field: text, "document": "{}"})
        assert answer.status_code == 422, path
        assert said in answer.text, path


@pytest.mark.parametrize("character", ["\\u0000", "\\u202e", "\\ud800"])
def test_what_a_document_only_escapes_is_refused_like_what_it_holds(client, character):
    document = '{"name": "main", "note": "a' + character + '", "models": {}}'
    for act in ("check", "publish"):
        answer = client.post("/policies/main/edit/", {"document": document, "act": act})
        assert answer.status_code == 422, act
        assert f"note: Holds the character U+{character[2:].upper()}" in answer.text, act
    saved = client.post("/policies/main/edit/", {"document": document, "act": "save"}, follow=True)
    assert f"note: Holds the character U+{character[2:].upper()}" in saved.text  # kept as typed
    spec = '{"a": "' + character + '"}'
    answer = client.post("/fleet/pools/p-a/roll-out/", {"spec": spec})
    assert answer.status_code == 422
    assert f"a: Holds the character U+{character[2:].upper()}" in answer.text


@pytest.mark.parametrize("path", UNREADABLE)
def test_a_filter_that_cannot_be_read_is_named(client, path):
    answer = client.get(path)
    assert answer.status_code == 422, path
    assert f"<p>{UNREADABLE[path]}: " in answer.text


@pytest.mark.parametrize("text", ["1_000", "٣٠٠", "60.0"])
def test_a_limit_of_a_rollout_is_written_in_digits(client, text):
    fields = {"spec": "{}", "load_limit_s": "600", "warm_s": "0", "drain_limit_s": text}
    answer = client.post("/fleet/pools/p-a/roll-out/", fields)
    assert answer.status_code == 422
    assert 'id="id_drain_limit_s_error"' in answer.text
    assert 'id="id_warm_s_error"' not in answer.text
