"""A refused task as its caller reads it: names, what was used, and the last steps."""

from datetime import UTC, datetime
from typing import Any

from routing.decision.workflow import TaskStep, TaskStory

_NANO = 1_000_000_000


def story_of(story: TaskStory) -> dict[str, Any]:
    """JSON values of `error.task`; money as decimal text, instants in UTC."""
    chain = story.chain
    return {
        "task_id": story.task,
        "task_kind": story.kind or None,
        "cap": story.cap,
        "used": story.used,
        "started_at": _instant(chain.start_ms),
        "steps": chain.steps,
        "parents": list(chain.parents),
        "chain": [_step(step) for step in chain.shown],
    }


def _step(step: TaskStep) -> dict[str, Any]:
    charged = step.charged_nanousd
    return {
        "number": step.number,
        "request_id": step.request_id,
        "model": step.model,
        "step": step.step or None,
        "at": _instant(step.at_ms),
        "held_usd": _usd(step.held_nanousd),
        "spend_usd": None if charged is None else _usd(charged),
    }


def _instant(at_ms: int) -> str:
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _usd(nanousd: int) -> str:
    whole, rest = divmod(nanousd, _NANO)
    return f"{whole}.{rest:09d}"
