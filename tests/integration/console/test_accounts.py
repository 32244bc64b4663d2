"""People: creation, roles, sessions, and the last admin."""

import threading

import pytest
from django.db import connection
from django.test import Client

from console.accounts.selectors import Permission, can, require, visible_tenant_ids
from console.accounts.services import (
    change_role,
    create_user,
    end_sessions,
    restore_user,
    suspend_user,
)
from console.audit.rules import SYSTEM
from console.errors import Conflict, Forbidden, InvalidInput, NotFound
from console.models import User
from tenants.directory.services import add_member, create_tenant, remove_member

PASSWORD = "correct horse battery"

pytestmark = pytest.mark.django_db(transaction=True)


def person(name: str, role: str = "operator", **fields: object) -> User:
    pk = create_user(username=name, email="", password=PASSWORD, role=role, actor=SYSTEM, **fields)
    return User.objects.get(pk=pk)


def test_a_weak_password_a_taken_name_and_an_unknown_role_are_refused():
    person("ana")
    for fields, error, field in (
        ({"password": "short"}, InvalidInput, "password"),
        ({"username": "ana"}, Conflict, "username"),
        ({"role": "emperor"}, InvalidInput, "role"),
        ({"grants": ["everything"]}, InvalidInput, "grants"),
    ):
        asked = {"username": "bob", "email": "", "password": PASSWORD, "role": "operator"}
        with pytest.raises(error) as refused:
            create_user(**{**asked, **fields}, actor=SYSTEM)
        assert refused.value.field == field
    assert User.objects.count() == 1


def test_the_last_admin_cannot_go_also_when_two_go_at_once():
    first, second = person("ana", "admin"), person("bob", "admin")
    ready, results = threading.Barrier(2), []

    def leave(user: User) -> None:
        ready.wait(10)
        try:
            suspend_user(user_id=user.pk, actor=SYSTEM, reason="leaves")
            results.append("left")
        except Conflict as error:
            results.append(error.code)
        finally:
            connection.close()

    threads = [threading.Thread(target=leave, args=(user,)) for user in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(results) == ["last_admin", "left"]
    assert User.objects.filter(role="admin", is_active=True).count() == 1


def test_the_last_admin_keeps_the_role():
    admin = person("ana", "admin")
    with pytest.raises(Conflict):
        change_role(user_id=admin.pk, role="operator", actor=SYSTEM)


def test_suspension_ends_sessions_and_permissions():
    person("ada", "admin")
    user, other = person("ana"), person("bob")
    mine, theirs = Client(), Client()
    mine.force_login(user)
    theirs.force_login(other)
    suspend_user(user_id=user.pk, actor=SYSTEM, reason="lost laptop")
    user.refresh_from_db()
    assert not can(user, Permission.VIEW_ALL)
    assert visible_tenant_ids(user) == frozenset()
    assert mine.get("/api/v1/me/").status_code == 401
    assert theirs.get("/api/v1/me/").status_code == 200
    restore_user(user_id=user.pk, actor=SYSTEM, reason="found")
    assert mine.get("/api/v1/me/").status_code == 401, "the old session stays ended"
    assert end_sessions(user_id=other.pk, actor=SYSTEM) == 1


def test_a_removed_member_has_lost_access_with_the_next_question():
    tenant_id = create_tenant(slug="acme", name="Acme", actor=SYSTEM)
    tina, vera = person("tina", "none"), person("vera", "none")
    for user in (tina, vera):
        add_member(tenant_id=tenant_id, user_id=user.pk, role="tenant_admin", actor=SYSTEM)
    require(tina, Permission.TENANT_MANAGE_KEYS, tenant_id)
    with pytest.raises(Forbidden):
        require(tina, Permission.MANAGE_TENANTS, tenant_id)
    remove_member(tenant_id=tenant_id, user_id=tina.pk, actor=SYSTEM)
    with pytest.raises(NotFound):
        require(tina, Permission.TENANT_VIEW, tenant_id)
    with pytest.raises(Conflict):
        remove_member(tenant_id=tenant_id, user_id=vera.pk, actor=SYSTEM)
