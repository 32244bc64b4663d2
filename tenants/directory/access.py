"""The tenant that a page or endpoint is about, if the caller may see it."""

from console.accounts.selectors import Caller, Permission, require
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
