"""The policy document's closed schema: every key, its kind, its range and its default."""

import re

from routing.contracts.enums import FallbackWhen, WorkClass
from routing.contracts.hooks import MAX_DEADLINE_MS, MAX_USES, HookPoint
from routing.contracts.snapshot import MAX_TASK_S
from routing.decision.filters import SLOW_START_S
from routing.decision.workflow import MAX_REPEATS
from routing.policies.rules.document import (
    BACKOFF_BASE_S,
    BACKOFF_MAX_S,
    FLOOR_RATIO,
    SCHEMA_VERSION,
)
from routing.policies.rules.nodes import REQUIRED, Choice, Flag, Group, Listed, Named, Number, Text

MAX_MODELS = 1000
MAX_ALIASES = 50
MAX_TARGETS = 50
MAX_WORKFLOWS = 100  # kinds of tasks
TASK_KIND = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,63}")
USD = re.compile(r"(?=.*[1-9])[0-9]{1,6}(\.[0-9]{1,9})?")  # above 0, exact in nano-dollars
MAX_FALLBACKS = 4  # each is estimated for every request of the model
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")
EVALUATION = re.compile(r"ev-[1-9][0-9]{0,17}")
SLUG = re.compile(r"[-a-zA-Z0-9_]{1,120}")


def _class_group(first_token_s: float, between_tokens_s: float) -> Group:
    deadlines = Group(
        {
            "first_token_s": (Number(0.1, 86_400), first_token_s),
            "between_tokens_s": (Number(0.1, 3600), between_tokens_s),
            "total_s": (Number(1, 86_400), 600.0),
        }
    )
    caps = Group({"output_tokens": (Number(1, 10_000_000, is_integer=True), None)})
    return Group(
        {
            "deadlines": (deadlines, {}),
            "caps": (caps, {}),
            "reserve_ratio": (Number(0, 0.9), 0.0),
            "floor_ratio": (Number(0.01, 0.3), FLOOR_RATIO),
        }
    )


_TARGET = Group(
    {
        "pool": (Text(SLUG), REQUIRED),
        "order": (Number(1, 9, is_integer=True), 1),
        "weight": (Number(0, 10), 1.0),
        "adapter": (Text(MODEL_NAME), ""),
    }
)
_FALLBACK = Group(
    {
        "model": (Text(MODEL_NAME), REQUIRED),
        "when": (Listed(Choice(tuple(FallbackWhen)), len(FallbackWhen)), list(FallbackWhen)),
        "evaluation": (Text(EVALUATION), REQUIRED),
        "headroom_ratio": (Number(0.01, 0.5), REQUIRED),
    }
)
_MODEL = Group(
    {
        "aliases": (Listed(Text(MODEL_NAME), MAX_ALIASES), []),
        "targets": (Listed(_TARGET, MAX_TARGETS), REQUIRED),
        "context_tokens": (Number(1, 100_000_000, is_integer=True), None),
        "fallbacks": (Listed(_FALLBACK, MAX_FALLBACKS), []),
    }
)
# First-token deadlines: ten times the default objective of the class, 600 s for batch.
_CLASSES = Group(
    {
        WorkClass.INTERACTIVE.value: (_class_group(5.0, 5.0), {}),
        WorkClass.STANDARD.value: (_class_group(20.0, 5.0), {}),
        WorkClass.BATCH.value: (_class_group(600.0, 60.0), {}),
    }
)
_ADMISSION = Group(
    {
        "default_class": (Choice(tuple(WorkClass)), WorkClass.STANDARD.value),
        "caps": (
            Group(
                {
                    "output_tokens": (Number(1, 10_000_000, is_integer=True), 4096),
                    "choices": (Number(1, 128, is_integer=True), 4),
                }
            ),
            {},
        ),
        "estimate": (Group({"bytes_per_token": (Number(1, 8), None)}), {}),
    }
)
_FAILURES = Group(
    {
        "attempts": (Number(1, 3, is_integer=True), 2),
        "retry_budget": (
            Group({"per_success": (Number(0, 1), 0.1), "burst": (Number(0, 1000), 10.0)}),
            {},
        ),
        "resend_before_output": (Flag(), False),
        "on_stream_loss": (Choice(("error", "continue")), "error"),
        "backoff": (
            Group(
                {"base_s": (Number(0, 5), BACKOFF_BASE_S), "max_s": (Number(0, 30), BACKOFF_MAX_S)}
            ),
            {},
        ),
    }
)
_ROUTING = Group(
    {"stale_after_s": (Number(1, 30), 3.0), "slow_start_s": (Number(0, 600), SLOW_START_S)}
)
_OUTAGE = Group(
    {
        "store_away": (Choice(("degraded", "closed")), "degraded"),
        "share_ratio": (Number(0, 1), 0.8),
        "max_s": (Number(5, 900), 300.0),
    }
)
_HOOK = Group(
    {
        "hook": (Text(SLUG), REQUIRED),
        "at": (Choice(tuple(HookPoint)), REQUIRED),
        "deadline_ms": (Number(1, MAX_DEADLINE_MS, is_integer=True), 200),
        "on_failure": (Choice(("refuse", "pass")), "refuse"),
        "classes": (Listed(Choice(tuple(WorkClass)), len(WorkClass)), None),
    }
)
_WORKFLOW = Group(
    {
        "max_steps": (Number(1, 1_000_000, is_integer=True), None),
        "max_spend_usd": (Text(USD), None),
        "max_wall_s": (Number(1, MAX_TASK_S, is_integer=True), None),
        "max_repeats": (Number(1, MAX_REPEATS, is_integer=True), None),
    }
)
SCHEMA = Group(
    {
        "schema_version": (
            Number(SCHEMA_VERSION, SCHEMA_VERSION, is_integer=True),
            SCHEMA_VERSION,
        ),
        "name": (Text(re.compile(r"[-a-zA-Z0-9_]{1,63}")), REQUIRED),
        "models": (Named(_MODEL, MODEL_NAME, MAX_MODELS, least=1), REQUIRED),
        "classes": (_CLASSES, {}),
        "admission": (_ADMISSION, {}),
        "routing": (_ROUTING, {}),
        "failures": (_FAILURES, {}),
        "outage": (_OUTAGE, {}),
        "hooks": (Listed(_HOOK, MAX_USES), []),
        "workflows": (Named(_WORKFLOW, TASK_KIND, MAX_WORKFLOWS), {}),
    }
)
