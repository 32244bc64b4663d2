"""A refused task as its caller reads it: names, what was used, and the last steps."""

from typing import Any

from routing.contracts.spelling import exact_usd, instant
from routing.decision.workflow import TaskStep, TaskStory


def story_of(story: TaskStory) -> dict[str, Any]:
    """JSON values of `error.task`; money as decimal text, instants in UTC."""
    chain = story.chain
    return {
        "task_id": story.task,
        "task_kind": story.kind or None,
        "cap": story.cap,
        "used": story.used,
        "started_at": instant(chain.start_ms),
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
        "at": instant(step.at_ms),
        "held_usd": exact_usd(step.held_nanousd),
        "spend_usd": None if charged is None else exact_usd(charged),
    }
