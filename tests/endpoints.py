"""Every endpoint of the REST API with who may call it, and a caller for tests."""

import json
from typing import Any

from django.test import Client

from capacity.playbooks.rules import SHIPPED, to_plain
from capacity.simulation.catalogue import PROFILES
from console.accounts.services import issue_token
from tests.factories import ACTOR, World

ALL = {"ana", "ola", "ada", "aud"}
ACTING = {"ana", "ola", "ada"}
MEMBERS = {"tina", "vic"}
EVERYONE = (*sorted(ALL), *sorted(MEMBERS), "nobody")
PROBLEM = {"code", "title", "status", "field", "hint", "request_id"}
DOCUMENT = {"name": "main", "models": {"llama-8b": {"targets": [{"pool": "p-a"}]}}}
OBJECTIVE = {"work_class": "batch", "metric": "e2e", "threshold_ms": 9000, "target_ratio": 0.9}
GRID = {"region": "eu", "g_co2e_per_kwh": 300, "pue": 1.2, "source": "utility report"}
NEW_USER = {
    "username": "new",
    "password": "correct horse battery",
    "role": "operator",
    "grants": ["policy.publish"],
}
PAUSE = {"kind": "pause", "work_class": "batch", "reason": "Capacity is reduced."}
HOOK = {"name": "words", "kind": "python", "entry_point": "words"}
EVALUATION = {
    "model": "llama-8b",
    "stands_in": "llama-70b",
    "score_ratio": 0.9,
    "note": "Our 200 cases.",
}
PLAYBOOK = to_plain(SHIPPED["noisy-tenant"])
INVITED = {"person": "nobody", "role": "tenant_viewer", "days": 3}
LIMIT = {"scope": "tenant", "dimension": "req", "window": "d", "amount": 5}
MORE = {"scope": "tenant", "dimension": "out", "window": "m", "amount": 99_000, "reason": "launch"}
PRICE = {
    "model": "llama-8b",
    "input_usd_per_mtok": "0.60",
    "cached_usd_per_mtok": "0.06",
    "output_usd_per_mtok": "2.40",
}
PROFILE = min(PROFILES)
SCHEDULE = {"timezone": "Europe/Berlin", "at_time": "02:30"}
NEW_SCHEDULE = {"name": "new", **SCHEDULE, "recipients": ["sre@example.com"]}

LAB = {
    "profile": PROFILE,
    "replicas": 8,
    "domains": 2,
    "rate_rps": 120,
    "input_tokens": 800,
    "output_tokens": 300,
}

# (method, path, body, who may); everyone else gets 404 below a tenant it does not see, else 403.
ENDPOINTS: list[tuple[str, str, Any, set[str]]] = [
    ("get", "me/", None, set(EVERYONE)),
    ("get", "tokens/", None, set(EVERYONE)),
    ("get", "users/", None, {"ada"}),
    ("post", "users/", NEW_USER, {"ada"}),
    ("get", "users/{vic}/", None, {"ada"}),
    ("patch", "users/{vic}/", {"role": "auditor", "reason": "joins audit"}, {"ada"}),
    ("post", "users/{vic}/suspend/", {"reason": "left"}, {"ada"}),
    ("post", "users/{vic}/restore/", {"reason": "back"}, {"ada"}),
    ("post", "users/{vic}/sign-out/", {"reason": "lost laptop"}, {"ada"}),
    ("get", "tenants/", None, set(EVERYONE)),
    ("post", "tenants/", {"slug": "new", "name": "New"}, ACTING),
    ("get", "tenants/acme/", None, ALL | MEMBERS),
    ("patch", "tenants/acme/", {"name": "Other"}, ACTING),
    ("post", "tenants/acme/suspend/", {"reason": "abuse"}, ACTING),
    ("post", "tenants/acme/restore/", {"reason": "paid"}, ACTING),
    ("get", "tenants/acme/projects/", None, ALL | MEMBERS),
    ("post", "tenants/acme/projects/", {"slug": "x", "name": "X"}, ACTING | {"tina"}),
    ("get", "tenants/acme/members/", None, ALL | MEMBERS),
    (
        "post",
        "tenants/acme/members/",
        {"username": "nobody", "role": "tenant_viewer"},
        ACTING,
    ),
    ("get", "tenants/acme/invitations/", None, ACTING | {"tina"}),
    ("post", "tenants/acme/invitations/", INVITED, ACTING | {"tina"}),
    ("delete", "tenants/acme/invitations/{invitation}/", None, ACTING | {"tina"}),
    ("patch", "tenants/acme/members/{vic}/", {"role": "tenant_viewer"}, ACTING | {"tina"}),
    ("delete", "tenants/acme/members/{vic}/", None, ACTING | {"tina"}),
    ("get", "tenants/acme/keys/", None, ALL | MEMBERS),
    ("get", "tenants/acme/keys/{key}/", None, ALL | MEMBERS),
    ("post", "tenants/acme/keys/", {"name": "k", "allowed_models": ["*"]}, ACTING | {"tina"}),
    ("post", "tenants/acme/keys/{key}/rotate/", {"grace_s": 60}, ACTING | {"tina"}),
    ("delete", "tenants/acme/keys/{key}/", None, ACTING | {"tina"}),
    ("get", "tenants/acme/budgets/", None, ALL | MEMBERS),
    ("get", "tenants/acme/limits/", None, ALL | MEMBERS),
    ("put", "tenants/acme/limits/", LIMIT, {"ana", "ada"}),
    (
        "put",
        "tenants/acme/limits/",
        {**LIMIT, "scope": "key", "key_id": "{key}"},
        {"ana", "ada", "tina"},
    ),
    (
        "delete",
        "tenants/acme/limits/?scope=tenant&dimension=req&window=m",
        None,
        {"ana", "ada"},
    ),
    ("get", "tenants/acme/refusals/", None, ALL | MEMBERS),
    ("get", "tenants/acme/refusals/{refused}/", None, ALL | MEMBERS),
    ("get", "tenants/acme/usage-series/?by=key&step=day", None, ALL | MEMBERS),
    ("get", "tenants/acme/quota-requests/", None, ALL | MEMBERS),
    ("post", "tenants/acme/quota-requests/", MORE, {"ana", "ada", "tina"}),
    ("get", "tenants/acme/quota-requests/{request}/", None, ALL | MEMBERS),
    ("post", "tenants/acme/quota-requests/{request}/withdraw/", None, {"ana", "ada", "tina"}),
    ("get", "quota-requests/", None, ALL),
    ("get", "quota-requests/{request}/", None, ALL),
    ("post", "quota-requests/{request}/grant/", {"amount": 160_000}, {"ana", "ada"}),
    ("post", "quota-requests/{request}/refuse/", {"reason": "full"}, {"ana", "ada"}),
    ("get", "usage/", None, set(EVERYONE)),
    ("get", "usage/?tenant=acme", None, ALL | MEMBERS),
    ("get", "usage/{usage}/", None, ALL | MEMBERS),
    ("get", "adjustments/", None, set(EVERYONE)),
    ("get", "reconciliation/", None, ALL),
    ("post", "reconciliation/", {"repair": True}, ACTING),
    ("get", "estimates/", None, ALL),
    ("get", "prices/", None, ALL | MEMBERS),
    ("post", "prices/", PRICE, {"ada"}),
    ("get", "resource-prices/", None, ALL | MEMBERS),
    ("post", "resource-prices/", {"resource": "tool:x", "unit_usd": "0.002"}, {"ada"}),
    ("get", "pool-prices/", None, ALL),
    ("post", "pool-prices/", {"pool": "p-a", "gpu_second_usd": "0.000694445"}, {"ada"}),
    ("get", "pools/", None, ALL),
    ("get", "pools/p-a/", None, ALL),
    ("put", "pools/p-a/provider/", {"capabilities": ["chat", "tools"]}, ACTING),
    ("delete", "pools/p-a/provider/", None, ACTING),
    ("get", "pool-profiles/", None, ALL),
    ("get", "pools/p-a/profile/", None, ALL),
    ("put", "pools/p-a/profile/", {"prior": "demo"}, ACTING),
    ("get", "pools/p-a/limits/", None, ALL),
    ("put", "pools/p-a/limits/", {"dimension": "conc", "amount": 5}, ACTING),
    ("delete", "pools/p-a/limits/?dimension=conc", None, ACTING),
    ("get", "fleet/limits/", None, ALL),
    ("put", "fleet/limits/", {"dimension": "req", "amount": 5}, ACTING),
    ("delete", "fleet/limits/?dimension=req", None, ACTING),
    ("get", "inventory/drift/", None, ALL),
    ("get", "inventory/node/", None, ALL),
    ("put", "inventory/region/", {"values": {"slug": "us", "name": "US"}}, ACTING),
    ("post", "inventory/region/import/", {"csv": "slug,name\nus,US\n"}, ACTING),
    ("get", "rollouts/", None, ALL),
    ("get", "rollouts/{rollout}/", None, ALL),
    ("post", "rollouts/{rollout}/pause/", {"reason": "look"}, {"ana", "ada"}),
    ("post", "rollouts/{rollout}/resume/", {}, {"ana", "ada"}),
    ("post", "rollouts/{rollout}/abort/", {"reason": "no"}, {"ana", "ada"}),
    ("post", "rollouts/{rollout}/roll-back/", {}, {"ana", "ada"}),
    ("post", "rollouts/", {"pool": "p-c", "reason": "newer"}, {"ana", "ada"}),
    ("get", "hooks/", None, ALL),
    ("get", "hooks/pii/", None, ALL),
    ("post", "hooks/", HOOK, {"ana", "ada"}),
    ("patch", "hooks/pii/", {"purpose": "Names"}, {"ana", "ada"}),
    ("delete", "hooks/pii/", None, {"ana", "ada"}),
    ("get", "evaluations/", None, ALL),
    ("post", "evaluations/", EVALUATION, {"ana", "ada"}),
    ("get", "evaluations/{evaluation}/", None, ALL),
    ("delete", "evaluations/{evaluation}/", None, {"ana", "ada"}),
    ("get", "overrides/", None, ALL),
    ("get", "overrides/?active=true", None, ALL),
    ("get", "overrides/{override}/", None, ALL),
    ("post", "overrides/", PAUSE, ACTING),
    ("delete", "overrides/{override}/?reason=over", None, ACTING),
    ("get", "playbooks/", None, ALL),
    ("get", "playbooks/noisy-tenant/", None, ALL),
    ("put", "playbooks/noisy-tenant/", {"document": PLAYBOOK, "base": 1}, {"ada"}),
    ("put", "playbooks/noisy-tenant/mode/", {"mode": "armed"}, {"ada"}),
    ("get", "playbooks/noisy-tenant/runs/", None, ALL),
    ("get", "playbooks/noisy-tenant/runs/{run}/", None, ALL),
    ("post", "playbooks/noisy-tenant/runs/{run}/undo/", {"reason": "enough"}, ACTING),
    ("get", "forecasts/", None, ALL),
    ("get", "forecasts/{forecast}/", None, ALL),
    ("post", "forecast-runs/", None, ACTING),
    ("get", "capacity-plan/", None, ALL),
    ("post", "capacity-lab/", LAB, ALL),
    ("get", "report-schedules/", None, ALL),
    ("post", "report-schedules/", NEW_SCHEDULE, {"ada"}),
    ("get", "report-schedules/daily/", None, ALL),
    ("put", "report-schedules/daily/", {**SCHEDULE, "version": 1}, {"ada"}),
    ("delete", "report-schedules/daily/", None, {"ada"}),
    ("get", "reports/", None, ALL),
    ("post", "reports/", {"hours": 6}, ACTING),
    ("get", "reports/{report}/", None, ALL),
    ("get", "reports/{report}/json/", None, ALL),
    ("get", "policies/", None, ALL),
    ("get", "policies/main/", None, ALL),
    ("get", "policies/main/versions/", None, ALL),
    ("get", "policies/main/versions/1/", None, ALL),
    ("post", "policy-check/", {"document": DOCUMENT}, ALL),
    ("post", "policies/main/publish/", {"document": DOCUMENT, "base": 2}, {"ana", "ada"}),
    ("post", "policies/main/versions/1/rollback/", {"base": 2}, {"ana", "ada"}),
    ("get", "policies/main/export/", None, ALL),
    ("get", "policies/main/diff/1..2/", None, ALL),
    ("get", "policies/main/draft/", None, ALL),
    ("put", "policies/main/draft/", {"document": DOCUMENT}, {"ana", "ada"}),
    ("delete", "policies/main/draft/", None, {"ana", "ada"}),
    ("post", "policies/main/draft/publish/", {}, {"ana", "ada"}),
    ("post", "policies/main/plan/", {"document": DOCUMENT}, {"ana", "ada"}),
    ("get", "policy-acks/", None, ALL),
    ("get", "tasks/", None, set(EVERYONE)),
    ("get", "tasks/?tenant=acme", None, ALL | MEMBERS),
    ("get", "tasks/{task}/", None, ALL | MEMBERS),
    ("get", "tasks/{task}/steps/", None, ALL | MEMBERS),
    ("get", "tasks/{task}/caps/", None, ALL | MEMBERS),
    (
        "post",
        "task-outcomes/",
        {"tenant": "acme", "task_id": "acme-task-3-2", "outcome": "success"},
        ACTING | {"tina"},
    ),
    ("get", "objectives/", None, ALL),
    ("put", "objectives/", OBJECTIVE, ACTING),
    ("get", "objectives/{objective}/", None, ALL),
    ("delete", "objectives/{objective}/", None, ACTING),
    ("get", "carbon/", None, ALL),
    ("put", "carbon/grid/", GRID, ACTING),
    ("put", "carbon/power/", {"hardware": "H", "power_w": 700, "source": "label"}, ACTING),
    ("get", "overview/", None, ALL),
    ("get", "system/", None, ALL),
    ("get", "audit/", None, ALL),
    ("get", "audit/verify/", None, {"ada", "aud"}),
    ("get", "jobs/", None, ALL),
    ("get", "jobs/{job}/", None, ALL),
    ("post", "jobs/{job}/cancel/", {"reason": "x"}, ACTING),
]
LISTS = [path for method, path, _, _ in ENDPOINTS if method == "get" and "verify" not in path]


class Caller:
    """Calls the API as one person, by bearer token."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        user = world.people[name]
        self.secret = issue_token(user_id=user.pk, name=f"t-{name}", actor=ACTOR).secret
        self.client = Client()

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        text = None if body is None else json.dumps(body)
        return getattr(self.client, method)(
            "/api/v1/" + self.filled(path),
            **({} if text is None else {"data": self.filled(text)}),
            content_type="application/json",
            headers={"Authorization": f"Bearer {self.secret}", **headers},
        )

    def filled(self, text: str) -> str:
        key_id = str(self.world.keys["acme"].id)
        return (
            text.replace('"{key}"', key_id)
            .replace("{key}", key_id)
            .replace("{vic}", str(self.world.people["vic"].pk))
            .replace("{usage}", self.world.usage)
            .replace("{job}", str(self.world.job))
            .replace("{rollout}", str(self.world.rollouts[0]))
            .replace("{task}", str(self.world.task_id))
            .replace("{objective}", str(self.world.objective_id))
            .replace("{request}", str(self.world.requests["acme"]))
            .replace("{refused}", self.world.refusals["acme"][0])
            .replace("{invitation}", str(self.world.invitation))
            .replace("{run}", str(self.world.run))
            .replace("{evaluation}", str(self.world.evaluation))
            .replace("{override}", str(self.world.override))
            .replace("{forecast}", str(self.world.forecast))
            .replace("{report}", str(self.world.report))
        )
