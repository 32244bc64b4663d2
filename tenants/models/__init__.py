"""The tenants app's models."""

from tenants.models.invitation import Invitation
from tenants.models.key import ApiKey
from tenants.models.price import PoolPrice, PriceRow, ResourcePrice
from tenants.models.quota import Limit
from tenants.models.reconciliation import Reconciliation
from tenants.models.request import ASKED_SCOPES, QuotaRequest, QuotaRequestState
from tenants.models.tenant import MemberRole, Membership, Project, Tenant, TenantState
from tenants.models.usage import (
    CounterDelta,
    DamagedEntry,
    LedgerBucket,
    Shape,
    Usage,
    UsageAdjustment,
    UsageRollup,
    WindowUsage,
    WriterPosition,
)
from tenants.models.work import WorkTask, WorkTaskPart

__all__ = [
    "ASKED_SCOPES",
    "ApiKey",
    "CounterDelta",
    "DamagedEntry",
    "Invitation",
    "LedgerBucket",
    "Limit",
    "MemberRole",
    "Membership",
    "PoolPrice",
    "PriceRow",
    "Project",
    "QuotaRequest",
    "QuotaRequestState",
    "Reconciliation",
    "ResourcePrice",
    "Shape",
    "Tenant",
    "TenantState",
    "Usage",
    "UsageAdjustment",
    "UsageRollup",
    "WindowUsage",
    "WorkTask",
    "WorkTaskPart",
    "WriterPosition",
]
