"""Which role holds which permission. Roles are those of the console design, section 2."""

from enum import StrEnum


class Permission(StrEnum):
    """What a person or token may do. `TENANT_*` are asked for one tenant, the rest for all."""

    VIEW_ALL = "view_all"
    ACT = "act"
    MANAGE_TENANTS = "manage_tenants"
    MANAGE_KEYS = "manage_keys"
    MANAGE_FLEET = "manage_fleet"
    MANAGE_PRICES = "manage_prices"
    MANAGE_ROLES = "manage_roles"
    MANAGE_SCHEDULES = "manage_schedules"
    POLICY_PUBLISH = "policy_publish"
    POLICY_APPROVE = "policy_approve"
    ROLLOUT_RUN = "rollout_run"
    PLAYBOOK_ARM = "playbook_arm"
    QUOTA_GRANT = "quota_grant"
    ADJUST_USAGE = "adjust_usage"
    VIEW_AUDIT = "view_audit"
    EXPORT_AUDIT = "export_audit"
    TENANT_VIEW = "tenant_view"
    TENANT_MANAGE_KEYS = "tenant_manage_keys"
    TENANT_MANAGE_MEMBERS = "tenant_manage_members"
    TENANT_MANAGE_LIMITS = "tenant_manage_limits"
    TENANT_REPORT_OUTCOMES = "tenant_report_outcomes"


TENANT_ADMIN = "tenant_admin"
TENANT_VIEWER = "tenant_viewer"

_EVERYTHING = frozenset(Permission)
_OPERATOR = frozenset(
    {
        Permission.VIEW_ALL,
        Permission.ACT,
        Permission.MANAGE_TENANTS,
        Permission.MANAGE_KEYS,
        Permission.MANAGE_FLEET,
        Permission.ADJUST_USAGE,
        Permission.VIEW_AUDIT,
        Permission.TENANT_VIEW,
        Permission.TENANT_MANAGE_KEYS,
        Permission.TENANT_MANAGE_MEMBERS,
        Permission.TENANT_REPORT_OUTCOMES,
    }
)
_AUDITOR = frozenset(
    {
        Permission.VIEW_ALL,
        Permission.VIEW_AUDIT,
        Permission.EXPORT_AUDIT,
        Permission.TENANT_VIEW,
    }
)
_BY_ROLE: dict[str, frozenset[Permission]] = {
    "none": frozenset(),
    "operator": _OPERATOR,
    "admin": _EVERYTHING,
    "auditor": _AUDITOR,
}
# A grant is an act that being an operator does not include. Granting quota reaches every limit.
_BY_GRANT: dict[str, frozenset[Permission]] = {
    "policy.publish": frozenset({Permission.POLICY_PUBLISH}),
    "policy.approve": frozenset({Permission.POLICY_APPROVE}),
    "rollout.run": frozenset({Permission.ROLLOUT_RUN}),
    "playbook.arm": frozenset({Permission.PLAYBOOK_ARM}),
    "quota.grant": frozenset({Permission.QUOTA_GRANT, Permission.TENANT_MANAGE_LIMITS}),
}
_BY_MEMBERSHIP: dict[str, frozenset[Permission]] = {
    TENANT_ADMIN: frozenset(
        {
            Permission.TENANT_VIEW,
            Permission.TENANT_MANAGE_KEYS,
            Permission.TENANT_MANAGE_MEMBERS,
            Permission.TENANT_MANAGE_LIMITS,
            Permission.TENANT_REPORT_OUTCOMES,
        }
    ),
    TENANT_VIEWER: frozenset({Permission.TENANT_VIEW}),
}


def permissions_everywhere(role: str, grants: tuple[str, ...]) -> frozenset[Permission]:
    """What a console role gives, for every tenant. Grants count only for operators."""
    held = _BY_ROLE.get(role, frozenset())
    if role == "operator":
        for grant in grants:
            held |= _BY_GRANT.get(grant, frozenset())
    return held


def permissions_in_tenant(member_role: str) -> frozenset[Permission]:
    """What a membership gives inside its own tenant."""
    return _BY_MEMBERSHIP.get(member_role, frozenset())
