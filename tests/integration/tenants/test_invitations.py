"""A person joins a tenant by an invitation: named, once, in time, and of its own choice."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from console.errors import Conflict
from console.models import AuditEvent, User
from tenants.directory.inviting import MOST_OPEN, invite
from tenants.models import Invitation, Membership
from tests import factories
from tests.factories import ACTOR
from tests.pages import client_of

pytestmark = pytest.mark.django_db
FIELDS = {"person": "nobody", "role": "tenant_viewer", "days": "7"}
INVITE = "/t/acme/members/invite/"


@pytest.fixture
def world(store) -> factories.World:
    made = factories.World()
    factories.make_tenant(made, "acme", "Acme Support")
    factories.make_tenant(made, "globex", "Globex Research")
    factories.make_people(made)
    return made


def link_of(answer) -> str:
    """The path of the link that the page shows."""
    found = re.search(r'id="link">http://testserver(/invitations/[\w-]+/)<', answer.text)
    assert found, answer.text
    return found.group(1)


def rest(client: Client, method: str, path: str, body: object = None, **headers: str):
    return getattr(client, method)(
        f"/api/v1/{path}", body, content_type="application/json", headers=headers
    )


def acts() -> list[str]:
    return list(AuditEvent.objects.order_by("pk").values_list("act", flat=True))


def is_member(world, name: str) -> bool:
    rows = Membership.objects.filter(tenant_id=world.tenants["acme"])
    return rows.filter(user=world.people[name]).exists()


@pytest.mark.parametrize("named", ["nobody", "NoBody@X.example"])
def test_the_named_person_joins_by_the_link_once(world, named):
    User.objects.filter(username="nobody").update(email="nobody@x.example")
    tina, nobody = client_of(world, "tina"), client_of(world, "nobody")
    link = link_of(tina.post(INVITE, {**FIELDS, "person": named}))
    assert not is_member(world, "nobody")
    assert nobody.get("/t/acme/").status_code == 404
    offered = nobody.get(link)
    assert "Acme Support" in offered.text
    assert "Tenant viewer" in offered.text
    assert "tina" in offered.text
    joined = nobody.post(link)
    assert (joined.status_code, joined.headers["Location"]) == (302, "/t/acme/")
    assert nobody.get("/t/acme/").status_code == 200
    assert nobody.get("/t/acme/members/invite/").status_code == 403
    again = nobody.post(link)
    assert again.status_code == 409
    assert "used or withdrawn" in again.text
    assert acts()[-3:] == ["invitation.invite", "member.add", "invitation.accept"]
    accepted = AuditEvent.objects.get(act="invitation.accept")
    assert (accepted.actor_label, accepted.tenant_id) == ("nobody", world.tenants["acme"])


def test_another_person_finds_nothing_behind_the_link(world):
    link = link_of(client_of(world, "tina").post(INVITE, FIELDS))
    for name in ("vic", "tina", "ana", "ada"):
        for answer in (client_of(world, name).get(link), client_of(world, name).post(link)):
            assert answer.status_code == 404, name
            assert "Join" not in answer.text, name
    assert client_of(world, "nobody").get("/invitations/no-such-one/").status_code == 404
    visitor = Client().get(link)
    assert visitor.headers["Location"].startswith("/sign-in/?next=/invitations/")
    assert not is_member(world, "ana")


def test_a_withdrawn_replaced_or_old_link_is_over(world):
    tina, nobody = client_of(world, "tina"), client_of(world, "nobody")
    first = link_of(tina.post(INVITE, FIELDS))
    second = link_of(tina.post(INVITE, {**FIELDS, "person": "NOBODY", "role": "tenant_admin"}))
    row = Invitation.objects.get(withdrawn_at=None)
    assert nobody.post(first).status_code == 409
    listed = tina.get("/t/acme/members/").text
    assert listed.count(f"invitations/{row.pk}/withdraw/") == 1
    assert tina.get(f"/t/acme/members/invitations/{row.pk}/withdraw/").status_code == 200
    assert tina.post(f"/t/acme/members/invitations/{row.pk}/withdraw/").status_code == 302
    assert nobody.post(second).status_code == 409
    assert tina.post(f"/t/acme/members/invitations/{row.pk}/withdraw/").status_code == 404
    third = link_of(tina.post(INVITE, {**FIELDS, "days": "1"}))
    Invitation.objects.filter(withdrawn_at=None).update(
        expires_at=timezone.now() - timedelta(seconds=1)
    )
    assert "too old" in nobody.get(third).text
    assert nobody.post(third).status_code == 409
    assert "NOBODY" not in tina.get("/t/acme/members/").text
    assert not is_member(world, "nobody")
    assert acts().count("invitation.withdraw") == 1


def test_inviting_tells_nothing_about_who_exists(world):
    tina = client_of(world, "tina")
    pages = []
    for name in ("nobody", "ada", "phantom"):
        answer = tina.post(INVITE, {**FIELDS, "person": name})
        shown = answer.text.partition("<main")[2]
        shown = re.sub(r"/invitations/[\w-]+/|<time.*?</time>", "", shown).replace(name, "X")
        pages.append((answer.status_code, shown))
    assert len(set(pages)) == 1


def test_who_works_for_all_tenants_or_is_a_member_gains_nothing(world):
    tina = client_of(world, "tina")
    for name, words in (("ola", "You work for all tenants"), ("vic", "member already")):
        link = link_of(tina.post(INVITE, {**FIELDS, "person": name, "role": "tenant_admin"}))
        refused = client_of(world, name).post(link)
        assert refused.status_code == 409, name
        assert words in refused.text
    assert not is_member(world, "ola")
    roles = Membership.objects.filter(user=world.people["vic"]).values_list("role", flat=True)
    assert list(roles) == ["tenant_viewer"]


def test_only_operators_add_people_unasked(world):
    tina = client_of(world, "tina")
    refused = tina.post("/t/acme/members/add/", {"person": "nobody", "role": "tenant_viewer"})
    assert refused.status_code == 403
    assert "Invite the person" in refused.text
    assert "members/add/" not in tina.get("/t/acme/members/").text
    body = {"username": "nobody", "role": "tenant_viewer"}
    by_rest = rest(tina, "post", "tenants/acme/members/", body)
    assert (by_rest.status_code, by_rest.json()["code"]) == (403, "invite_instead")
    assert not is_member(world, "nobody")


def test_invitations_of_a_tenant_are_bounded_and_old_ones_make_room(world):
    asked = {"tenant_id": world.tenants["acme"], "role": "tenant_viewer", "invited_by": None}
    for number in range(MOST_OPEN):
        invite(person=f"person-{number}", actor=ACTOR, **asked)
    with pytest.raises(Conflict, match=f"{MOST_OPEN} invitations are open"):
        invite(person="one-more", actor=ACTOR, **asked)
    invite(person="person-7", actor=ACTOR, **asked)  # takes the place of its own earlier one
    Invitation.objects.filter(person="person-9").update(expires_at=timezone.now())
    invite(person="one-more", actor=ACTOR, **asked)


def test_rest_invites_lists_withdraws_and_accepts(world):
    tina, nobody = client_of(world, "tina"), client_of(world, "nobody")
    base, body = "tenants/acme/invitations/", {"person": "nobody", "role": "tenant_viewer"}
    for wrong, field in (({**body, "role": "owner"}, "role"), ({**body, "days": 31}, "days")):
        refused = rest(tina, "post", base, wrong)
        assert (refused.status_code, refused.json()["field"]) == (422, field)
    first = rest(tina, "post", base, body).json()
    (listed,) = rest(tina, "get", base).json()
    assert listed == first["invitation"]
    assert (listed["invited_by"], listed["tenant"]) == ("tina", "acme")
    assert rest(tina, "delete", f"{base}{listed['id']}/").status_code == 204
    over = rest(nobody, "post", "invitations/accept/", {"secret": first["secret"]})
    assert (over.status_code, over.json()["code"]) == (409, "invitation_over")
    secret = rest(tina, "post", base, body).json()["secret"]
    assert (
        rest(client_of(world, "vic"), "post", "invitations/accept/", {"secret": secret}).status_code
        == 404
    )
    key = {"Idempotency-Key": "join-acme-once"}
    joined = rest(nobody, "post", "invitations/accept/", {"secret": secret}, **key)
    assert (joined.status_code, joined.json()["tenant"]) == (200, "acme")
    repeated = rest(nobody, "post", "invitations/accept/", {"secret": secret}, **key)
    assert repeated.json() == joined.json()
    assert rest(tina, "get", base).json() == []
    assert secret not in str(list(Invitation.objects.values()))
