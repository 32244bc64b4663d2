"""Which role holds which permission."""

import pytest

from console.accounts.rules import Permission, permissions_everywhere, permissions_in_tenant

GRANTS = {
    "policy.publish": {Permission.POLICY_PUBLISH},
    "policy.approve": {Permission.POLICY_APPROVE},
    "rollout.run": {Permission.ROLLOUT_RUN},
    "playbook.arm": {Permission.PLAYBOOK_ARM},
    "quota.grant": {Permission.QUOTA_GRANT, Permission.TENANT_MANAGE_LIMITS},
}


def test_admin_holds_everything():
    assert permissions_everywhere("admin", ()) == frozenset(Permission)


@pytest.mark.parametrize(("grant", "given"), GRANTS.items())
def test_each_grant_gives_an_operator_its_own_acts_only(grant, given):
    plain = permissions_everywhere("operator", ())
    assert permissions_everywhere("operator", (grant,)) - plain == given


@pytest.mark.parametrize("role", ["none", "auditor", "no-such-role"])
def test_grants_count_only_for_operators(role):
    assert permissions_everywhere(role, tuple(GRANTS)) == permissions_everywhere(role, ())


def test_auditor_changes_nothing():
    held = permissions_everywhere("auditor", ())
    assert held == {
        Permission.VIEW_ALL,
        Permission.VIEW_AUDIT,
        Permission.EXPORT_AUDIT,
        Permission.TENANT_VIEW,
    }


def test_membership_gives_only_tenant_permissions():
    admin = permissions_in_tenant("tenant_admin")
    assert all(item.value.startswith("tenant_") for item in admin)
    assert permissions_in_tenant("tenant_viewer") == {Permission.TENANT_VIEW}
    assert permissions_in_tenant("no-such-role") == frozenset()
