"""Every page by its kind, who may see it, and how a test asks for it."""

import re
from html.parser import HTMLParser

from django.test import Client

from capacity.models import Forecast, PlaybookRun, Report
from tests import factories

CALLS_OF_TASKS = 8  # the world's two tasks of four calls

LISTS = (
    "/fleet/",
    "/rollouts/",
    "/inventory/",
    "/inventory/?kind=pool",
    "/inventory/drift/",
    "/hooks/",
    "/evaluations/",
    "/overrides/",
    "/overrides/?all=1",
    "/playbooks/",
    "/playbooks/noisy-tenant/",
    "/policies/main/",
    "/tenants/",
    "/tenants/acme/keys/",
    "/t/acme/keys/",
    "/tenants/acme/members/",
    "/t/acme/members/",
    "/people/",
    "/t/acme/usage/",
    "/usage/",
    "/usage/?tenant=acme",
    "/quota-requests/",
    "/t/acme/limits/requests/",
    "/t/acme/requests/",
    "/tenants/acme/requests/",
    "/prices/",
    "/prices/resources/",
    "/prices/pools/",
    "/estimates/",
    "/reconciliation/",
    "/audit/",
    "/jobs/",
    "/capacity/forecast/",
    "/capacity/profiles/",
    "/reports/",
)
OTHERS = (
    "/search/",
    "/search/?q=acme",
    "/live/",
    "/",
    "/why-p99/",
    "/why-bill/",
    "/tasks/",
    "/tasks/{task}/",
    "/t/acme/tasks/",
    "/t/acme/tasks/{task}/",
    "/carbon/",
    "/slo/",
    "/fleet/pools/p-a/",
    "/rollouts/{rollout}/",
    "/policies/",
    "/policies/main/versions/1/",
    "/tenants/acme/",
    "/t/acme/",
    "/spend/",
    "/spend/?by=model",
    "/spend/?by=key",
    "/system/",
    "/playbooks/noisy-tenant/runs/{run}/",
    "/capacity/lab/",
    "/capacity/profiles/p-a/",
    "/capacity/lab/?question=eight-gpus",
    "/capacity/forecast/{forecast}/",
    "/reports/{report}/",
    "/me/",
    "/people/{vic}/",
    "/quota-requests/{request}/",
    "/t/acme/spend/",
    "/t/acme/spend/?by=key&of=input&range=day",
    "/t/acme/spend/?by=model&of=output&range=month",
    "/t/acme/requests/?id=none",
    "/t/acme/requests/{refused}/",
    "/t/acme/requests/{served}/",
    "/requests/",
    "/requests/?id=none",
    "/requests/{refused}/",
    "/requests/{served}/",
    "/api/docs/",
)
FORMS = (
    "/carbon/grid/",
    "/carbon/power/",
    "/slo/set/",
    "/slo/{objective}/remove/",
    "/me/password/",
    "/me/tokens/issue/",
    "/new-person/",
    "/people/{vic}/suspend/",
    "/people/{vic}/restore/",
    "/people/{vic}/sign-out/",
    "/people/{vic}/password/",
    "/tenants/acme/members/add/",
    "/tenants/acme/members/invite/",
    "/t/acme/members/invite/",
    "/t/acme/members/{vic}/role/",
    "/t/acme/members/{vic}/remove/",
    "/policies/main/edit/",
    "/policies/main/versions/1/roll-back/",
    "/new-evaluation/",
    "/new-override/",
    "/new-hook/",
    "/hooks/pii/",
    "/playbooks/noisy-tenant/mode/",
    "/new-tenant/",
    "/fleet/limits/",
    "/fleet/pools/p-a/limits/",
    "/fleet/pools/p-a/provider/",
    "/fleet/pools/p-a/roll-out/",
    "/inventory/import/",
    "/rollouts/{rollout}/abort/",
    "/rollouts/{rollout}/pause/",
    "/new-price/",
    "/prices/resources/new/",
    "/prices/pools/new/",
    "/reports/new-schedule/",
    "/reports/schedules/daily/",
    "/tenants/acme/suspend/",
    "/tenants/acme/limits/",
    "/tenants/acme/keys/issue/",
    "/tenants/acme/keys/{key}/rotate/",
    "/tenants/acme/keys/{key}/revoke/",
    "/t/acme/limits/requests/ask/",
)
EVERYONE_SIGNED_IN = ("ana", "ola", "ada", "aud", "tina", "vic", "nobody")
SEES_ALL = {"ana", "ola", "ada", "aud"}
MEMBERS = {"tina", "vic"}


def client_of(world: factories.World, name: str) -> Client:
    client = Client()
    client.force_login(world.people[name])
    return client


def path_of(world: factories.World, path: str) -> str:
    path = path.replace("{vic}", str(world.people["vic"].pk))
    path = path.replace("{forecast}", str(Forecast.objects.latest("pk").pk))
    path = path.replace("{report}", str(Report.objects.latest("pk").pk))
    path = path.replace("{rollout}", str(world.rollouts[0]))
    path = path.replace("{task}", str(world.task_id)).replace(
        "{objective}", str(world.objective_id)
    )
    path = path.replace("{request}", str(world.requests["acme"]))
    path = path.replace("{refused}", world.refusals["acme"][0])
    path = path.replace("{served}", world.served["acme"][0])
    path = path.replace("{run}", str(PlaybookRun.objects.order_by("id").values_list("pk")[0][0]))
    return path.replace("{key}", str(world.keys["acme"].id))


def expected(name: str, path: str) -> int:  # noqa: PLR0911 - one answer a rule
    """Status that the roles of the console's design give."""
    own = path.startswith(("/t/acme/", "/tenants/acme/"))
    acts = {
        "/reports/new-schedule/": {"ada"},
        "/reports/schedules/daily/": {"ada"},
        "/carbon/grid/": {"ana", "ola", "ada"},
        "/carbon/power/": {"ana", "ola", "ada"},
        "/slo/set/": {"ana", "ola", "ada"},
        "/slo/{objective}/remove/": {"ana", "ola", "ada"},
        "/policies/main/edit/": {"ana", "ada"},
        "/policies/main/versions/1/roll-back/": {"ana", "ada"},
        "/new-evaluation/": {"ana", "ada"},
        "/new-override/": {"ana", "ola", "ada"},
        "/new-hook/": {"ana", "ada"},
        "/hooks/pii/": {"ana", "ada"},
        "/playbooks/noisy-tenant/mode/": {"ada"},
        "/new-tenant/": {"ana", "ola", "ada"},
        "/new-price/": {"ada"},
        "/prices/resources/new/": {"ada"},
        "/prices/pools/new/": {"ada"},
        "/fleet/limits/": {"ana", "ola", "ada"},
        "/fleet/pools/p-a/limits/": {"ana", "ola", "ada"},
        "/fleet/pools/p-a/provider/": {"ana", "ola", "ada"},
        "/fleet/pools/p-a/roll-out/": {"ana", "ada"},
        "/inventory/import/": {"ana", "ola", "ada"},
        "/rollouts/{rollout}/abort/": {"ana", "ada"},
        "/rollouts/{rollout}/pause/": {"ana", "ada"},
        "/tenants/acme/suspend/": {"ana", "ola", "ada"},
        "/tenants/acme/limits/": {"ana", "ada", "tina"},
        "/tenants/acme/keys/issue/": {"ana", "ola", "ada", "tina"},
        "/tenants/acme/keys/{key}/rotate/": {"ana", "ola", "ada", "tina"},
        "/tenants/acme/keys/{key}/revoke/": {"ana", "ola", "ada", "tina"},
        "/tenants/acme/members/add/": {"ana", "ola", "ada"},
        "/tenants/acme/members/invite/": {"ana", "ola", "ada", "tina"},
        "/t/acme/members/invite/": {"ana", "ola", "ada", "tina"},
        "/t/acme/members/{vic}/role/": {"ana", "ola", "ada", "tina"},
        "/t/acme/members/{vic}/remove/": {"ana", "ola", "ada", "tina"},
        "/t/acme/limits/requests/ask/": {"ana", "ada", "tina"},
    }
    if path.startswith(("/me/", "/api/docs/", "/search/")):
        return 200
    if path.startswith(("/people/", "/new-person/")):
        return 200 if name == "ada" else 403
    if path in acts:
        if name in acts[path]:
            return 200
        is_absent = own and name == "nobody" and path != "/tenants/acme/suspend/"
        return 404 if is_absent else 403
    if name in SEES_ALL or ((own or path == "/live/") and name in MEMBERS):
        return 200
    if path == "/" and name in MEMBERS:
        return 302
    return 404 if own else 403


def plain_text(html: str) -> str:
    """The words of a page without its elements."""
    return " ".join(re.sub(r"<[^>]+>", "", html).split())


class Elements(HTMLParser):
    """Elements of a page that a hostile name could have made."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {name for name, _ in attrs}
        if tag == "img" or any(name.startswith("on") for name in names):
            self.found.append(tag)
        is_data = ("type", "application/json") in attrs
        if tag == "script" and "src" not in names and not is_data:
            self.found.append(tag)
        if any((value or "").startswith("http://x.example") for _, value in attrs):
            self.found.append(tag)
