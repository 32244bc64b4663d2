"""A small world for page tests: people of every role, tenants, keys, a fleet, usage, live states.

Rows go through the services where those exist.
"""

from tests.factories.fleet import make_fleet, make_pools, make_rollout, make_single_prices
from tests.factories.ledger import REFUSALS, make_refusals, make_tasks, make_usage
from tests.factories.live import KV_TOKENS, beat, scrape
from tests.factories.policy import make_draft, make_evaluations, make_hook, make_policy
from tests.factories.world import (
    ACTOR,
    GRANTS,
    PASSWORD,
    USD,
    World,
    make_members,
    make_objective,
    make_people,
    make_quota_request,
    make_tenant,
)

__all__ = [
    "ACTOR",
    "GRANTS",
    "KV_TOKENS",
    "PASSWORD",
    "REFUSALS",
    "USD",
    "World",
    "beat",
    "make_draft",
    "make_evaluations",
    "make_fleet",
    "make_hook",
    "make_members",
    "make_objective",
    "make_people",
    "make_policy",
    "make_pools",
    "make_quota_request",
    "make_refusals",
    "make_rollout",
    "make_single_prices",
    "make_tasks",
    "make_tenant",
    "make_usage",
    "scrape",
]
