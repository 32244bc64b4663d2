"""The only place that mounts pages."""

from typing import Any

from django.urls import URLPattern, URLResolver, include, path
from django.views.generic import RedirectView

from capacity.fleet import inventory
from capacity.fleet import pages as fleet
from capacity.forecasts import pages as forecasts
from capacity.lab import pages as lab
from capacity.playbooks import pages as playbooks
from capacity.profiles import pages as profiles
from capacity.reports import pages as reports
from capacity.rollouts import pages as rollouts
from capacity.rollouts import steering
from console.accounts import pages as accounts
from console.accounts import people, profile
from console.pages import audit, failures, health, jobs, overview, questions, search, system
from console.web import theme
from routing.estimates import pages as estimates
from routing.evaluations import pages as evaluations
from routing.hooks import pages as hooks
from routing.overrides import pages as overrides
from routing.policies import editor
from routing.policies import pages as policies
from telemetry.economics import pages as economics
from telemetry.live import pages as telemetry
from telemetry.slos import pages as slos
from tenants.directory import invitations, members
from tenants.directory import pages as directory
from tenants.keys import pages as keys
from tenants.ledger import pages as ledger
from tenants.portal import pages as portal
from tenants.portal import refusals as portal_refusals
from tenants.portal import request as portal_request
from tenants.portal import spend as portal_spend
from tenants.portal import tenants as portal_tenants
from tenants.portal import usage as portal_usage
from tenants.prices import pages as prices
from tenants.quotas import pages as quotas
from tenants.reconcile import pages as reconcile
from tenants.requests import pages as requests
from tenants.work import pages as work

# Prefix of page names whose links stay in that area: all tenants, or one's own.
ALL: dict[str, Any] = {"area": ""}
OWN: dict[str, Any] = {"area": "own_"}


def key_pages(prefix: str, area: dict[str, Any]) -> list[URLPattern]:
    """The same key pages below `/tenants/` and below `/t/`."""
    name, base = area["area"], f"{prefix}/<slug:slug>/keys/"
    return [
        path(base, keys.keys, area, name=f"{name}keys"),
        path(f"{base}issue/", keys.issue, area, name=f"{name}issue_key"),
        path(f"{base}<int:key_id>/rotate/", keys.rotate, area, name=f"{name}rotate_key"),
        path(f"{base}<int:key_id>/revoke/", keys.revoke, area, name=f"{name}revoke_key"),
    ]


def member_pages(prefix: str, area: dict[str, Any]) -> list[URLPattern]:
    """The same member pages below `/tenants/` and below `/t/`."""
    name, base = area["area"], f"{prefix}/<slug:slug>/members/"
    return [
        path(base, members.members, area, name=f"{name}members"),
        path(f"{base}add/", members.add, area, name=f"{name}add_member"),
        path(f"{base}invite/", invitations.invite_member, area, name=f"{name}invite_member"),
        path(
            f"{base}invitations/<int:invitation_id>/withdraw/",
            invitations.withdraw_invitation,
            area,
            name=f"{name}withdraw_invitation",
        ),
        path(f"{base}<int:user_id>/role/", members.change, area, name=f"{name}change_member"),
        path(f"{base}<int:user_id>/remove/", members.remove, area, name=f"{name}remove_member"),
    ]


urlpatterns: list[URLPattern | URLResolver] = [
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("favicon.ico", RedirectView.as_view(url="/static/img/icon.svg", permanent=True)),
    path("sign-in/", accounts.SignIn.as_view(), name="sign_in"),
    path("sign-out/", accounts.SignOut.as_view(), name="sign_out"),
    path("theme/", theme.theme, name="theme"),
    path("", overview.overview, name="overview"),
    path("search/", search.search, name="search"),
    path("why-p99/", questions.why_p99, name="why_p99"),
    path("why-bill/", questions.why_bill, name="why_bill"),
    path("tasks/", work.tasks, name="tasks"),
    path("tasks/<int:task_id>/", work.task, name="task"),
    path("carbon/", economics.carbon, name="carbon"),
    path("carbon/grid/", economics.state_grid, name="state_grid"),
    path("carbon/power/", economics.state_power, name="state_power"),
    path("slo/", slos.slo, name="slo"),
    path("slo/set/", slos.set_objective, name="set_objective"),
    path("slo/<int:objective_id>/remove/", slos.remove_objective, name="remove_objective"),
    path("live/", telemetry.live, name="live"),
    path("fleet/", fleet.fleet, name="fleet"),
    path("fleet/limits/", fleet.fleet_limits, name="fleet_limits"),
    path("fleet/pools/<str:name>/", fleet.pool, name="pool"),
    path("fleet/pools/<str:name>/provider/", fleet.pool_provider, name="pool_provider"),
    path("fleet/pools/<str:name>/limits/", fleet.pool_limits, name="pool_limits"),
    path("fleet/pools/<str:name>/roll-out/", steering.start_rollout, name="start_rollout"),
    path("inventory/", inventory.inventory, name="inventory"),
    path("inventory/import/", inventory.import_inventory, name="import_inventory"),
    path("inventory/drift/", inventory.drift, name="drift"),
    path("rollouts/", rollouts.rollouts, name="rollouts"),
    path("rollouts/<int:rollout_id>/", rollouts.rollout, name="rollout"),
    path("rollouts/<int:rollout_id>/<slug:act>/", steering.rollout_act, name="rollout_act"),
    path("capacity/lab/", lab.lab, name="lab"),
    path("capacity/profiles/", profiles.profiles, name="profiles"),
    path("capacity/profiles/<str:name>/", profiles.profile, name="profile"),
    path("playbooks/", playbooks.playbooks, name="playbooks"),
    path("playbooks/<slug:name>/", playbooks.playbook, name="playbook"),
    path("playbooks/<slug:name>/mode/", playbooks.playbook_mode, name="playbook_mode"),
    path("playbooks/<slug:name>/runs/<int:run_id>/", playbooks.playbook_run, name="playbook_run"),
    path("playbooks/<slug:name>/runs/<int:run_id>/undo/", playbooks.undo, name="undo_run"),
    path("playbooks/<slug:name>/runs/<int:run_id>/approve/", playbooks.approve, name="approve_run"),
    path("overrides/", overrides.overrides, name="overrides"),
    path("new-override/", overrides.new_override, name="new_override"),
    path("overrides/<int:override_id>/lift/", overrides.lift, name="lift_override"),
    path("hooks/", hooks.hooks, name="hooks"),
    path("new-hook/", hooks.new_hook, name="new_hook"),
    path("hooks/<slug:name>/", hooks.one_hook, name="hook"),
    path("hooks/<slug:name>/remove/", hooks.remove, name="remove_hook"),
    path("evaluations/", evaluations.evaluations, name="evaluations"),
    path("new-evaluation/", evaluations.new_evaluation, name="new_evaluation"),
    path(
        "evaluations/<int:evaluation_id>/withdraw/",
        evaluations.withdraw,
        name="withdraw_evaluation",
    ),
    path("capacity/forecast/", forecasts.forecasts, name="forecasts"),
    path("capacity/forecast/now/", forecasts.forecast_now, name="forecast_now"),
    path("capacity/forecast/<int:forecast_id>/", forecasts.forecast, name="forecast"),
    path("reports/", reports.reports, name="reports"),
    path("reports/issue/", reports.issue_now, name="issue_report"),
    path("reports/new-schedule/", reports.new_schedule, name="new_report_schedule"),
    path("reports/schedules/<slug:name>/", reports.edit_schedule, name="report_schedule"),
    path("reports/schedules/<slug:name>/remove/", reports.remove, name="remove_report_schedule"),
    path("reports/<int:report_id>/", reports.report, name="report"),
    path("reports/<int:report_id>/<slug:kind>/", reports.report_file, name="report_file"),
    path("policies/", policies.policies, name="policies"),
    path("policies/<slug:name>/", policies.policy, name="policy"),
    path("policies/<slug:name>/edit/", editor.edit_policy, name="edit_policy"),
    path(
        "policies/<slug:name>/versions/<int:number>/",
        policies.policy_version,
        name="policy_version",
    ),
    path(
        "policies/<slug:name>/versions/<int:number>/roll-back/",
        policies.roll_back_policy,
        name="roll_back_policy",
    ),
    path("tenants/", portal_tenants.tenants, name="tenants"),
    path("new-tenant/", directory.new_tenant, name="new_tenant"),
    path("tenants/<slug:slug>/", portal.tenant, ALL, name="tenant"),
    path("tenants/<slug:slug>/suspend/", directory.suspend, name="suspend_tenant"),
    path("tenants/<slug:slug>/restore/", directory.restore, name="restore_tenant"),
    path("tenants/<slug:slug>/requests/", portal_refusals.refusals, ALL, name="refusals"),
    path("requests/", portal_request.find, name="find_request"),
    path("requests/<uuid:request_id>/", portal_request.request_page, name="request"),
    path("tenants/<slug:slug>/limits/", quotas.edit_limits, name="edit_limits"),
    *key_pages("tenants", ALL),
    *member_pages("tenants", ALL),
    path("t/<slug:slug>/", portal.tenant, OWN, name="own_tenant"),
    path("t/<slug:slug>/tasks/", work.own_tasks, name="own_tasks"),
    path("t/<slug:slug>/tasks/<int:task_id>/", work.own_task, name="own_task"),
    path("t/<slug:slug>/usage/", ledger.own_usage, name="own_usage"),
    path("t/<slug:slug>/usage.csv", ledger.own_usage_csv, name="own_usage_csv"),
    path("t/<slug:slug>/spend/", portal_usage.own_spend, name="own_spend"),
    path("t/<slug:slug>/requests/", portal_refusals.refusals, OWN, name="own_refusals"),
    path(
        "t/<slug:slug>/requests/<uuid:request_id>/",
        portal_request.own_request_page,
        name="own_request",
    ),
    path("t/<slug:slug>/limits/requests/", requests.own_requests, name="own_quota_requests"),
    path("t/<slug:slug>/limits/requests/ask/", requests.ask, name="ask_for_more"),
    path(
        "t/<slug:slug>/limits/requests/<int:request_id>/withdraw/",
        requests.withdraw_own,
        name="withdraw_request",
    ),
    *key_pages("t", OWN),
    *member_pages("t", OWN),
    path("quota-requests/", requests.quota_requests, name="quota_requests"),
    path("quota-requests/<int:request_id>/", requests.quota_request, name="quota_request"),
    path("spend/", portal_spend.spend, name="spend"),
    path("usage/", ledger.usage, name="usage"),
    path("usage.csv", ledger.usage_csv, name="usage_csv"),
    path("estimates/", estimates.estimates, name="estimates"),
    path("prices/", prices.prices, name="prices"),
    path("new-price/", prices.new_price, name="new_price"),
    path("prices/resources/", prices.resources, name="resource_prices"),
    path("prices/resources/new/", prices.new_resource_price, name="new_resource_price"),
    path("prices/pools/", prices.pools, name="pool_prices"),
    path("prices/pools/new/", prices.new_pool_price, name="new_pool_price"),
    path("reconciliation/", reconcile.reconciliation, name="reconciliation"),
    path("reconciliation/run/", reconcile.reconcile_now, name="reconcile_now"),
    path("audit/", audit.audit, name="audit"),
    path("audit.csv", audit.audit_csv, name="audit_csv"),
    path("jobs/", jobs.jobs, name="jobs"),
    path("jobs/<int:job_id>/cancel/", jobs.cancel_job, name="cancel_job"),
    path("people/", people.people_list, name="people"),
    path("new-person/", people.new_person, name="new_person"),
    path("people/<int:user_id>/", people.one_person, name="person"),
    path("people/<int:user_id>/suspend/", people.suspend, name="suspend_person"),
    path("people/<int:user_id>/restore/", people.restore, name="restore_person"),
    path("people/<int:user_id>/sign-out/", people.sign_out, name="end_sessions"),
    path("people/<int:user_id>/password/", people.give_password, name="set_password"),
    path("invitations/<str:secret>/", invitations.answer_invitation, name="invitation"),
    path("me/", profile.me, name="me"),
    path("me/password/", profile.password, name="change_password"),
    path("me/tokens/issue/", profile.issue, name="issue_token"),
    path("me/tokens/<int:token_id>/revoke/", profile.revoke, name="revoke_token"),
    path("system/", system.system, name="system"),
    path("api/", include("console.project.rest")),
]

handler400 = failures.bad_request
handler403 = failures.forbidden
handler404 = failures.not_found
handler500 = failures.server_error
