"""Run inside a stack's environment: tenants for a soak, and their keys as JSON on the last line.

`free` has no limit, `tight` is refused often (requests a minute, concurrency), `wide` has every
kind of limit and reaches none. Playbooks are off: what a caller sees here is the fault's doing.
"""

import json
import sys

import django

USD = 10**9
LIMITS = {
    "free": (),
    "tight": (("tenant", "req", "m", 90), ("tenant", "conc", "g", 2), ("key", "out", "m", 4_000)),
    "wide": (
        ("tenant", "usd", "d", 10_000 * USD),
        ("tenant", "in", "m", 50_000_000),
        ("tenant", "out", "d", 50_000_000),
        ("tenant", "conc", "g", 500),
        ("key", "req", "d", 5_000_000),
    ),
}


def main() -> None:
    django.setup()
    from capacity.playbooks.rules import SHIPPED
    from capacity.playbooks.services import set_mode
    from routing.policies.services import push_snapshot
    from tenants.directory.services import create_tenant
    from tenants.keys.services import issue_key
    from tenants.quotas.services import set_limit
    from tests.factories import ACTOR

    secrets = {}
    suffix = sys.argv[1] if len(sys.argv) > 1 else ""
    for slug, limits in LIMITS.items():
        tenant_id = create_tenant(
            slug=slug + suffix, name=slug.title(), timezone="UTC", actor=ACTOR
        )
        key = issue_key(tenant_id=tenant_id, name="soak", actor=ACTOR)
        for scope, dimension, window, amount in limits:
            only_key = {"key_id": key.id} if scope == "key" else {}
            set_limit(
                tenant_id=tenant_id,
                scope=scope,
                dimension=dimension,
                window=window,
                amount=amount,
                actor=ACTOR,
                **only_key,
            )
        secrets[slug] = key.secret
    for playbook in SHIPPED:
        set_mode(name=playbook, mode="off", actor=ACTOR, reason="faults")
    push_snapshot()
    sys.stdout.write(f"\n{json.dumps(secrets)}\n")


if __name__ == "__main__":
    main()
