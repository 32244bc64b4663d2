"""What a policy is made of: its versions and drafts, hooks, evaluations."""

from capacity.fleet.services import create_model
from console.audit.rules import Actor
from routing.evaluations.services import record_evaluation
from routing.hooks.services import add_hook
from routing.policies.rules.document import in_order
from routing.policies.selectors import live
from routing.policies.services import publish, save_draft
from routing.policies.text import to_text
from tests.factories.world import ACTOR, World


def make_policy(world: World, model: str = "llama-8b", versions: int = 1) -> None:
    """Published versions of the policy `main`."""
    for number in range(1, versions + 1):
        publish(
            policy="main",
            document={
                "schema_version": 1,
                "name": "main",
                "note": f"version {number}",
                "models": {
                    model: {"targets": [{"pool": pool, "weight": number} for pool in world.pools]}
                },
            },
            base=number - 1 or None,
            note=f"weights {number}",
            actor=Actor(world.people["ana"].pk, "ana") if world.people else ACTOR,
        )


def make_draft(world: World, changed: str = '"stale_after_s": 9') -> str:
    """A draft of `main` on its live version with one change; returns its tag."""
    current = live("main")
    assert current is not None
    text = to_text(in_order(current.document)).replace('"stale_after_s": 3', changed)
    return save_draft(
        policy="main",
        text=text,
        base=current.number,
        note="slower scrapes",
        actor=Actor(world.people["ana"].pk, "ana"),
    ).tag


def make_hook(name: str = "pii") -> None:
    """A webhook that no policy names yet."""
    url, secret = "https://guard.example.com/check", "a-secret-of-the-factories"
    add_hook(name=name, kind="webhook", url=url, secret=secret, purpose="Names", actor=ACTOR)


def make_evaluations(world: World, count: int = 1) -> None:
    """Records that a second model of the catalogue may stand in for the first."""
    if not world.evaluation:
        create_model(name="llama-70b", context_tokens=16_384, bytes_per_token=3.0, actor=ACTOR)
    for number in range(count):
        made = record_evaluation(
            model="llama-8b",
            stands_in="llama-70b",
            score_ratio=0.93,
            note=f"200 support questions, judged by two people, round {number}.",
            actor=ACTOR,
        )
        world.evaluation = made.id
