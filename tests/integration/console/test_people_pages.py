"""People, profile and member pages: what each act does, refuses, names and never shows."""

import re

import pytest
from django.test import Client

from console.accounts.services import issue_token
from console.models import ApiToken, AuditEvent, User
from tenants.directory.services import add_member
from tests import factories
from tests.factories import PASSWORD

pytestmark = pytest.mark.django_db

HOSTILE = '<img src=x onerror=alert(1)>"><script>alert(1)</script>'
NEW = {
    "username": "newcomer",
    "email": "new@x.example",
    "password": PASSWORD,
    "role": "operator",
    "grants": ["policy.publish", "quota.grant"],
}


@pytest.fixture
def world(store) -> factories.World:
    made = factories.World()
    factories.make_tenant(made, "acme", "Acme Support")
    factories.make_tenant(made, "globex", "Globex Research")
    factories.make_people(made)
    return made


def client_of(world: factories.World, name: str) -> Client:
    client = Client()
    client.force_login(world.people[name])
    return client


def error_at(answer, field: str) -> str:
    assert answer.status_code == 422
    found = re.search(rf'id="id_{field}_error".*?<p>(.*?)</p>', answer.text, re.DOTALL)
    assert found, f"no error at {field}"
    return found.group(1)


def acts() -> list[str]:
    return list(AuditEvent.objects.order_by("pk").values_list("act", flat=True))


def test_an_admin_creates_a_second_person_who_signs_in_and_may_what_was_given(world):
    done = client_of(world, "ada").post("/new-person/", NEW)
    made = User.objects.get(username="newcomer")
    assert done.headers["Location"] == f"/people/{made.pk}/"
    assert (made.role, made.grants) == ("operator", ["policy.publish", "quota.grant"])
    assert "user.create" in acts()
    window = Client()
    signed = window.post("/sign-in/", {"username": "newcomer", "password": PASSWORD})
    assert signed.status_code == 302
    assert window.get("/policies/").status_code == 200
    assert window.get("/people/").status_code == 403


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"username": "ana"}, "username"),
        ({"username": "<b>"}, "username"),
        ({"password": "short"}, "password"),
        ({"email": "nowhere"}, "email"),
        ({"role": "emperor"}, "role"),
        ({"grants": ["everything"]}, "grants"),
    ],
)
def test_a_refusal_stands_at_its_field_and_creates_nobody(world, change, field):
    before = User.objects.count()
    answer = client_of(world, "ada").post("/new-person/", {**NEW, **change})
    assert error_at(answer, field)
    assert PASSWORD not in answer.text
    assert User.objects.count() == before


def test_role_and_grants_are_changed_with_a_reason(world):
    ola = world.people["ola"]
    client = client_of(world, "ada")
    fields = {"role": "operator", "grants": ["rollout.run"], "reason": "on call"}
    assert client.post(f"/people/{ola.pk}/", fields).status_code == 302
    ola.refresh_from_db()
    assert ola.grants == ["rollout.run"]
    assert AuditEvent.objects.get(act="user.change_role").reason == "on call"
    assert error_at(client.post(f"/people/{ola.pk}/", {**fields, "reason": ""}), "reason")


def test_the_last_admin_keeps_role_and_access(world):
    ada = world.people["ada"]
    client = client_of(world, "ada")
    demoted = client.post(f"/people/{ada.pk}/", {"role": "none", "reason": "x"})
    assert demoted.status_code == 422
    assert "last admin" in demoted.text
    suspended = client.post(f"/people/{ada.pk}/suspend/", {"confirm": "ada", "reason": "x"})
    assert suspended.status_code == 422
    assert "last admin" in suspended.text
    assert client.get("/people/").status_code == 200


def test_suspending_needs_the_name_ends_sessions_and_is_undone_by_restoring(world):
    vic, client = world.people["vic"], client_of(world, "ada")
    window = client_of(world, "vic")
    path = f"/people/{vic.pk}/suspend/"
    assert error_at(client.post(path, {"confirm": "ola", "reason": "left"}), "confirm")
    assert window.get("/t/acme/").status_code == 200
    assert client.post(path, {"confirm": "vic", "reason": "left"}).status_code == 302
    assert window.get("/t/acme/").status_code == 302
    assert "suspended" in client.get(f"/people/{vic.pk}/").text
    assert client.post(f"/people/{vic.pk}/restore/", {"reason": "back"}).status_code == 302
    assert client_of(world, "vic").get("/t/acme/").status_code == 200
    assert acts()[-2:] == ["user.suspend", "user.restore"]


def test_sessions_are_ended_and_a_lost_password_replaced(world):
    vic, client = world.people["vic"], client_of(world, "ada")
    window = client_of(world, "vic")
    assert client.post(f"/people/{vic.pk}/sign-out/", {"reason": "lost"}).status_code == 302
    assert window.get("/t/acme/").status_code == 302
    path = f"/people/{vic.pk}/password/"
    assert error_at(client.post(path, {"password": "short", "reason": "lost"}), "password")
    assert client.post(path, {"password": PASSWORD, "reason": "lost"}).status_code == 302
    signed = Client().post("/sign-in/", {"username": "vic", "password": PASSWORD})
    assert signed.status_code == 302
    assert acts()[-2:] == ["user.end_sessions", "user.set_password"]


def test_the_list_pages_through_everyone_once_and_starts_where_asked(world):
    factories.make_members(world, "acme", 60)
    client = client_of(world, "ada")
    seen: list[str] = []
    address: str | None = "/people/"
    while address:
        text = client.get(address).text
        seen += re.findall(r'<a href="/people/\d+/">([^<]+)</a>', text)
        found = re.search(r'href="([^"]+)" rel="next"', text)
        address = "/people/" + found.group(1).replace("&amp;", "&") if found else None
    assert sorted(seen) == sorted(User.objects.values_list("username", flat=True))
    text = client.get("/people/?from=viewer-050").text
    assert ">viewer-050</a>" in text
    assert ">viewer-049</a>" not in text
    assert "No person from here on" in client.get("/people/?from=zzz").text


def test_ones_own_password_needs_the_present_one_and_keeps_only_this_session(world):
    ana = world.people["ana"]
    ana.set_password(PASSWORD)
    ana.save()
    client, other = client_of(world, "ana"), client_of(world, "ana")
    fields = {"current": "wrong", "password": "another fine word", "again": "another fine word"}
    assert error_at(client.post("/me/password/", fields), "current")
    fields["current"] = PASSWORD
    assert error_at(client.post("/me/password/", {**fields, "again": "x"}), "again")
    weak = {"current": PASSWORD, "password": "short", "again": "short"}
    assert error_at(client.post("/me/password/", weak), "password")
    assert client.post("/me/password/", fields).status_code == 302
    assert client.get("/me/").status_code == 200
    assert other.get("/me/").status_code == 302
    assert acts()[-1] == "user.change_password"


def test_a_token_is_shown_once_with_its_command_works_and_is_revoked(world):
    client = client_of(world, "tina")
    first = client.post("/me/tokens/issue/", {"name": "ci", "expires_at": ""}).text
    token = re.search(r'id="secret">(hrt_[^<]+)<', first).group(1)
    assert f"Bearer {token}" in first
    assert "curl http://testserver/api/v1/me/" in first
    bearer = {"Authorization": f"Bearer {token}"}
    assert Client().get("/api/v1/me/", headers=bearer).json()["username"] == "tina"
    assert token not in client.get("/me/").text
    taken = client.post("/me/tokens/issue/", {"name": "ci", "expires_at": ""})
    assert "of that name" in error_at(taken, "name")
    past = client.post("/me/tokens/issue/", {"name": "old", "expires_at": "2020-01-01T00:00"})
    assert "future" in error_at(past, "expires_at")
    row = ApiToken.objects.get(name="ci")
    path = f"/me/tokens/{row.pk}/revoke/"
    assert client_of(world, "ana").get(path).status_code == 404
    assert error_at(client.post(path, {"confirm": "nope"}), "confirm")
    assert client.post(path, {"confirm": row.prefix[-4:]}).status_code == 302
    assert Client().get("/api/v1/me/", headers=bearer).status_code == 401


@pytest.mark.parametrize(("name", "area"), [("ada", "/t/acme/"), ("ola", "/tenants/acme/")])
@pytest.mark.parametrize("named", ["nobody", "Nobody@X.example"])
def test_a_member_is_added_by_name_or_address_changed_and_removed(world, name, area, named):
    nobody = world.people["nobody"]
    nobody.email = "nobody@x.example"
    nobody.save()
    client, window = client_of(world, name), client_of(world, "nobody")
    fields = {"person": named, "role": "tenant_viewer"}
    assert client.post(f"{area}members/add/", fields).status_code == 302
    assert window.get("/t/acme/").status_code == 200
    assert window.get("/t/acme/members/invite/").status_code == 403
    again = client.post(f"{area}members/add/", fields)
    assert "member already" in error_at(again, "person")
    role = f"{area}members/{nobody.pk}/role/"
    assert client.post(role, {"role": "tenant_admin"}).status_code == 302
    assert window.get("/t/acme/members/invite/").status_code == 200
    remove = f"{area}members/{nobody.pk}/remove/"
    assert error_at(client.post(remove, {"reason": ""}), "reason")
    assert client.post(remove, {"reason": "left"}).status_code == 302
    assert window.get("/t/acme/").status_code == 404
    assert acts()[-3:] == ["member.add", "member.change_role", "member.remove"]


def test_who_does_not_exist_is_suspended_or_is_not_one_person_is_refused_at_the_field(world):
    User.objects.create(username="namesake", email="shared@x.example")
    User.objects.filter(username="nobody").update(email="shared@x.example")
    User.objects.filter(username="vic").update(is_active=False)
    client = client_of(world, "ola")
    for named in ("ghost", "vic", "shared@x.example", "%"):
        fields = {"person": named, "role": "tenant_viewer"}
        assert error_at(client.post("/tenants/acme/members/add/", fields), "person"), named


def test_a_tenant_admin_reads_no_address_but_its_own(world):
    for name, person in world.people.items():
        User.objects.filter(pk=person.pk).update(email=f"{name}@x.example")
    client = client_of(world, "tina")
    fields = {"person": "ola", "role": "tenant_viewer"}
    assert client_of(world, "ana").post("/tenants/acme/members/add/", fields).status_code == 302
    by_tina = client.get("/t/acme/members/").text
    assert [it for it in ("tina", "vic", "ola") if f"{it}@x.example" in by_tina] == ["tina"]
    by_ana = client_of(world, "ana").get("/tenants/acme/members/").text
    assert all(f"{it}@x.example" in by_ana for it in ("tina", "vic", "ola"))


def test_the_last_tenant_admin_stays_and_leaving_leads_to_a_page_that_exists(world):
    tina, client = world.people["tina"], client_of(world, "tina")
    role, remove = (f"/t/acme/members/{tina.pk}/{act}/" for act in ("role", "remove"))
    for path, fields in ((role, {"role": "tenant_viewer"}), (remove, {"reason": "bye"})):
        refused = client.post(path, fields)
        assert refused.status_code == 422
        assert "last admin" in refused.text
    vic = world.people["vic"]
    client.post(f"/t/acme/members/{vic.pk}/role/", {"role": "tenant_admin"})
    left = client.post(remove, {"reason": "bye"})
    assert client.get(left.headers["Location"]).status_code == 200
    assert client.get("/t/acme/members/").status_code == 404


def test_members_of_another_tenant_are_not_found(world):
    client, vic = client_of(world, "tina"), world.people["vic"].pk
    for path in ("", "add/", "invite/", f"{vic}/role/", f"{vic}/remove/"):
        assert client.get(f"/t/globex/members/{path}").status_code == 404
        assert client.post(f"/t/globex/members/{path}", {}).status_code in (404, 405)
    assert client_of(world, "ana").get(f"/tenants/globex/members/{vic}/role/").status_code == 404


def test_hostile_names_are_text_on_people_profile_and_member_pages(world):
    odd = User.objects.create(username=HOSTILE, email=f"{HOSTILE}@x.example", role="none")
    add_member(
        tenant_id=world.tenants["acme"], user_id=odd.pk, role="tenant_viewer", actor=factories.ACTOR
    )
    token = issue_token(user_id=odd.pk, name=HOSTILE[:60], actor=factories.ACTOR)
    world.people["odd"] = odd
    for name, paths in (
        ("ada", ("/people/", "", "suspend/", "restore/", "sign-out/", "password/")),
        ("tina", ("/t/acme/members/", "role/", "remove/")),
        ("odd", ("/me/", f"/me/tokens/{token.id}/revoke/")),
    ):
        base = "/t/acme/members" if name == "tina" else "/people"
        for path in paths:
            full = path if path.startswith("/") else f"{base}/{odd.pk}/{path}"
            answer = client_of(world, name).get(full)
            assert answer.status_code == 200, full
            assert "<img" not in answer.text, full
            assert "<script>" not in answer.text, full
            assert "&lt;img" in answer.text, full


def test_each_navigation_leads_to_profile_and_reference_and_only_admins_to_people(world):
    for name in ("ana", "ada", "aud", "tina", "nobody"):
        text = client_of(world, name).get("/me/").text
        assert 'href="/api/docs/"' in text, name
        assert ('href="/people/"' in text) == (name == "ada"), name
    assert 'href="/t/acme/members/"' in client_of(world, "vic").get("/me/").text
