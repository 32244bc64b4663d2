"""Is a document a policy that fits what exists now, and is it on top of the live version?"""

from collections.abc import Sequence

from django.utils import timezone

from capacity.fleet.selectors import models_for_snapshot, pools_for_snapshot
from console.errors import Conflict, InvalidInput
from routing.contracts.capabilities import capabilities_of
from routing.evaluations.selectors import standing
from routing.hooks.selectors import hooks_for_snapshot
from routing.models import PolicyVersion
from routing.policies.rules.compile import (
    ModelFacts,
)
from routing.policies.rules.document import Document
from routing.policies.rules.fallbacks import FallbackFacts, PoolFacts
from routing.policies.rules.findings import Finding
from routing.policies.rules.validate import Checked, Surroundings, check
from routing.policies.rules.words import Sentence
from routing.policies.selectors import PolicyVersionView
from routing.policies.text import compare
from tenants.prices.selectors import prices_for_snapshot


class PolicyRefused(InvalidInput):
    """The document has findings that refuse it; all of them are in `findings`."""

    code = "policy_refused"

    def __init__(self, findings: Sequence[Finding]) -> None:
        first = findings[0]
        super().__init__(
            f"{first.path}: {first.reason} {first.fix}", field=first.path, hint=first.fix
        )
        self.findings = tuple(findings)


class StaleBase(Conflict):
    """Another version became live meanwhile; `changes` says in sentences what it did.

    `live` is None while none is live; `base` is None for none, and for one that never was.
    """

    code = "stale_base"

    def __init__(self, policy: str, base: int | None, live: PolicyVersionView | None) -> None:
        super().__init__(
            f"The live version is {live.number if live else 'none'}, not {base or 'none'}.",
            field="base",
            hint="Look at what changed, then publish on top of the live version.",
        )
        self.live = live
        self.changes: tuple[Sentence, ...] = ()
        if live is not None and base is not None:
            stood_on = PolicyVersion.objects.filter(policy__name=policy, number=base).first()
            if stood_on is not None:
                self.changes = compare(stood_on.document, live.document).words


def check_document(document: object) -> Checked:
    """Every finding about a document, against what exists now. Changes nothing."""
    now_ms = int(timezone.now().timestamp() * 1000)
    prices = prices_for_snapshot(timezone.now())
    pools, models = pools_for_snapshot(), model_facts()
    return check(
        document,
        Surroundings(
            models=frozenset(models),
            pools={name: pool.served_model for name, pool in pools.items()},
            hooks=frozenset(hooks_for_snapshot()),
            limited=frozenset(name for name, pool in pools.items() if pool.limits),
            priced=frozenset(
                model for model, rows in prices.items() if rows[0].valid_from_ms <= now_ms
            ),
            fallbacks=FallbackFacts(
                context_tokens={name: facts.context_tokens for name, facts in models.items()},
                pools={
                    name: PoolFacts(
                        domain=pool.failure_domain,
                        capabilities=capabilities_of(pool.style, pool.capabilities),
                        has_limits=bool(pool.limits),
                    )
                    for name, pool in pools.items()
                },
                evaluations=standing() if _names_fallbacks(document) else frozenset(),
            ),
        ),
    )


def _names_fallbacks(document: object) -> bool:
    """Most policies name none: their checks are spared a query."""
    models = document.get("models") if isinstance(document, dict) else None
    if not isinstance(models, dict):
        return False
    return any(isinstance(rule, dict) and rule.get("fallbacks") for rule in models.values())


def accepted(policy: str, plain: object) -> Document:
    """The typed document; raises `PolicyRefused`, or `InvalidInput` if it names another policy."""
    return accepted_of(policy, check_document(plain))


def accepted_of(policy: str, checked: Checked) -> Document:
    """The same, of a document that was checked."""
    if checked.document is None or checked.is_refused:
        raise PolicyRefused([f for f in checked.findings if f.level == "refuse"])
    if checked.document.name != policy:
        raise InvalidInput(
            f"The document is named {checked.document.name!r}.",
            field="name",
            hint=f"Name it {policy!r}.",
        )
    return checked.document


def model_facts() -> dict[str, ModelFacts]:
    """The catalogue as the compiler needs it."""
    return {
        name: ModelFacts(
            context_tokens=model.context_tokens,
            output_cap_tokens=model.output_cap_tokens,
            bytes_per_token=model.bytes_per_token,
        )
        for name, model in models_for_snapshot().items()
    }
