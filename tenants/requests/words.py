"""Quota requests as a person reads them."""

from datetime import datetime

from console.web import units
from routing.contracts.enums import Dimension
from tenants.models import QuotaRequestState
from tenants.quotas.selectors import LimitView
from tenants.quotas.words import amount_of, subject_of, title_of
from tenants.requests.selectors import RequestView


def named(limit: LimitView) -> str:
    """Which limit: `Input tokens/min`, `Daily spend of model llama-8b`."""
    subject = subject_of(limit, {})
    return title_of(limit) if subject == "tenant" else f"{title_of(limit)} of {subject}"


def unit_of(limit: LimitView) -> str:
    """What its amounts are in, where the name does not say it."""
    return "USD" if limit.dimension is Dimension.SPEND_NANOUSD else ""


def amount(limit: LimitView, value: int | None) -> str:
    """An amount with its unit: `150.00 USD`, `60,000`."""
    return f"{amount_of(limit, value)} {unit_of(limit)}".strip()


def typed(limit: LimitView, value: int | None) -> str:
    """An amount as a form field takes it: no thousands separators."""
    return "" if value is None else amount_of(limit, value).replace(",", "")


def happened(found: RequestView) -> str:
    """What became of a request, in one sentence; empty while it is open."""
    by = found.decided_by or "the system"
    at = f"on {_moment(found.decided_at)}" if found.decided_at else ""
    because = f": {found.decision_reason}" if found.decision_reason else ""
    if found.state is QuotaRequestState.OPEN:
        return ""
    if found.state is QuotaRequestState.WITHDRAWN:
        return f"{by} withdrew it {at}."
    if found.state is QuotaRequestState.REFUSED:
        return f"{by} refused it {at}{because}"
    until = f" until {_moment(found.ends_at)}" if found.ends_at else ", without an end"
    granted = f"{by} granted {amount(found.limit, found.amount_granted)}{until} {at}{because}"
    if found.state is QuotaRequestState.GRANTED:
        return granted
    ended = f"Ended on {_moment(found.ended_at)}" if found.ended_at else "Ended"
    back = found.end_note or f"Back to {amount(found.limit, found.amount_back)}."
    return f"{granted.rstrip('.')}. {ended}. {back}"


def _moment(value: datetime | None) -> str:
    return units.moment(value) if value else ""
