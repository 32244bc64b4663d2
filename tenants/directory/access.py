"""The tenant that a page or endpoint is about, if the caller may see it."""

from console.accounts.selectors import Caller, Permission, may_reach_everybody, require
from console.errors import Forbidden
from tenants.directory.selectors import TenantView, tenant_by_slug


def open_tenant(
    user: Caller, slug: str, permission: Permission = Permission.TENANT_VIEW
) -> TenantView:
    """The tenant of that slug.

    Raises `NotFound` both for a tenant that does not exist and for another person's, `Forbidden`
    for one that may be seen but not acted on.
    """
    found = tenant_by_slug(slug)
    require(user, permission, found.id)
    return found


def open_to_add(user: Caller, slug: str) -> TenantView:
    """The tenant, to a caller who may make people its members without asking them.

    Raises `Forbidden` for the tenant's own admins, who invite, and what `open_tenant` raises.
    """
    found = open_tenant(user, slug, Permission.TENANT_MANAGE_MEMBERS)
    if not may_reach_everybody(user):
        raise Forbidden(
            "Only operators add people without asking them.",
            hint="Invite the person: it joins by a link.",
            code="invite_instead",
        )
    return found
