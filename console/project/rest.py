"""The only place that mounts api modules. `urls.py` includes this below `/api/`."""

from django.urls import URLPattern, URLResolver, include, path
from drf_spectacular.views import SpectacularAPIView

from capacity.fleet import api as fleet
from capacity.forecasts import api as forecasts
from capacity.lab import api as lab
from capacity.playbooks import api as playbooks
from capacity.profiles import api as profiles
from capacity.reports import api as reports
from capacity.rollouts import api as rollouts
from console.accounts import api as accounts
from console.pages import api as console
from console.pages import overview_api as overview
from console.pages.reference import reference
from routing.estimates import api as estimates
from routing.evaluations import api as evaluations
from routing.hooks import api as hooks
from routing.overrides import api as overrides
from routing.policies import api as policies
from telemetry.economics import api as economics
from telemetry.slices import api as slices
from telemetry.slos import api as slos
from tenants.directory import api as directory
from tenants.directory import invitations_api as invitations
from tenants.keys import api as keys
from tenants.ledger import api as ledger
from tenants.portal import api as portal
from tenants.prices import api as prices
from tenants.quotas import api as quotas
from tenants.reconcile import api as reconcile
from tenants.requests import api as requests
from tenants.work import api as work

_tenant: list[URLPattern] = [
    path("", directory.Tenant.as_view(), name="api_tenant"),
    path("suspend/", directory.TenantSuspend.as_view(), name="api_tenant_suspend"),
    path("restore/", directory.TenantRestore.as_view(), name="api_tenant_restore"),
    path("projects/", directory.Projects.as_view(), name="api_projects"),
    path("projects/<int:project_id>/", directory.Project.as_view(), name="api_project"),
    path("members/", directory.Members.as_view(), name="api_members"),
    path("members/<int:user_id>/", directory.Member.as_view(), name="api_member"),
    path("invitations/", invitations.Invitations.as_view(), name="api_invitations"),
    path(
        "invitations/<int:invitation_id>/",
        invitations.OneInvitation.as_view(),
        name="api_invitation",
    ),
    path("keys/", keys.Keys.as_view(), name="api_keys"),
    path("keys/<int:key_id>/", keys.Key.as_view(), name="api_key"),
    path("keys/<int:key_id>/rotate/", keys.KeyRotate.as_view(), name="api_key_rotate"),
    path("budgets/", quotas.Budgets.as_view(), name="api_budgets"),
    path("limits/", quotas.Limits.as_view(), name="api_limits"),
    path("refusals/", portal.Refusals.as_view(), name="api_refusals"),
    path("refusals/<uuid:request_id>/", portal.Refusal.as_view(), name="api_refusal"),
    path("usage-series/", portal.UsageSeries.as_view(), name="api_usage_series"),
    path("quota-requests/", requests.OwnRequests.as_view(), name="api_own_quota_requests"),
    path(
        "quota-requests/<int:request_id>/",
        requests.OwnRequest.as_view(),
        name="api_own_quota_request",
    ),
    path(
        "quota-requests/<int:request_id>/withdraw/",
        requests.OwnWithdrawal.as_view(),
        name="api_own_quota_request_withdraw",
    ),
]

_policy: list[URLPattern] = [
    path("", policies.Policy.as_view(), name="api_policy"),
    path("draft/", policies.Draft.as_view(), name="api_policy_draft"),
    path("draft/publish/", policies.DraftPublish.as_view(), name="api_policy_draft_publish"),
    path("publish/", policies.Publish.as_view(), name="api_policy_publish"),
    path("export/", policies.Export.as_view(), name="api_policy_export"),
    path("plan/", policies.PlanIt.as_view(), name="api_policy_plan"),
    path("apply/", policies.Apply.as_view(), name="api_policy_apply"),
    path("diff/<int:before>..<int:after>/", policies.Difference.as_view(), name="api_policy_diff"),
    path("versions/", policies.Versions.as_view(), name="api_policy_versions"),
    path("versions/<int:number>/", policies.Version.as_view(), name="api_policy_version"),
    path(
        "versions/<int:number>/rollback/",
        policies.Rollback.as_view(),
        name="api_policy_rollback",
    ),
]

_rollout: list[URLPattern] = [
    path("", rollouts.Rollout.as_view(), name="api_rollout"),
    path("pause/", rollouts.RolloutPause.as_view(), name="api_rollout_pause"),
    path("resume/", rollouts.RolloutResume.as_view(), name="api_rollout_resume"),
    path("abort/", rollouts.RolloutAbort.as_view(), name="api_rollout_abort"),
    path("roll-back/", rollouts.RolloutRollBack.as_view(), name="api_rollout_roll_back"),
]

_playbook: list[URLPattern] = [
    path("", playbooks.OnePlaybook.as_view(), name="api_playbook"),
    path("mode/", playbooks.Mode.as_view(), name="api_playbook_mode"),
    path("runs/", playbooks.Runs.as_view(), name="api_playbook_runs"),
    path("runs/<int:run_id>/", playbooks.OneRun.as_view(), name="api_playbook_run"),
    path("runs/<int:run_id>/undo/", playbooks.UndoRun.as_view(), name="api_playbook_undo"),
    path("runs/<int:run_id>/approve/", playbooks.ApproveRun.as_view(), name="api_playbook_approve"),
]

_v1: list[URLPattern | URLResolver] = [
    path("me/", accounts.Me.as_view(), name="api_me"),
    path("tokens/", accounts.Tokens.as_view(), name="api_tokens"),
    path("tokens/<int:token_id>/", accounts.Token.as_view(), name="api_token"),
    path("users/", accounts.Users.as_view(), name="api_users"),
    path("users/<int:user_id>/", accounts.OneUser.as_view(), name="api_user"),
    path("users/<int:user_id>/suspend/", accounts.UserSuspend.as_view(), name="api_user_suspend"),
    path("users/<int:user_id>/restore/", accounts.UserRestore.as_view(), name="api_user_restore"),
    path("users/<int:user_id>/sign-out/", accounts.UserSignOut.as_view(), name="api_user_sign_out"),
    path("tenants/", directory.Tenants.as_view(), name="api_tenants"),
    path("tenants/<slug:slug>/", include(_tenant)),
    path(
        "invitations/accept/",
        invitations.AcceptInvitation.as_view(),
        name="api_accept_invitation",
    ),
    path("quota-requests/", requests.Requests.as_view(), name="api_quota_requests"),
    path(
        "quota-requests/<int:request_id>/",
        requests.QuotaRequest.as_view(),
        name="api_quota_request",
    ),
    path(
        "quota-requests/<int:request_id>/grant/",
        requests.Grant.as_view(),
        name="api_quota_request_grant",
    ),
    path(
        "quota-requests/<int:request_id>/refuse/",
        requests.Refusal.as_view(),
        name="api_quota_request_refuse",
    ),
    path("usage/", ledger.Usage.as_view(), name="api_usage"),
    path("usage/<uuid:request_id>/", ledger.UsageLine.as_view(), name="api_usage_line"),
    path("adjustments/", ledger.Adjustments.as_view(), name="api_adjustments"),
    path("reconciliation/", reconcile.Reconciliation.as_view(), name="api_reconciliation"),
    path("estimates/", estimates.Estimates.as_view(), name="api_estimates"),
    path("prices/", prices.Prices.as_view(), name="api_prices"),
    path("resource-prices/", prices.ResourcePrices.as_view(), name="api_resource_prices"),
    path("pool-prices/", prices.PoolPrices.as_view(), name="api_pool_prices"),
    path("pools/", fleet.Pools.as_view(), name="api_pools"),
    path("pools/<slug:name>/", fleet.Pool.as_view(), name="api_pool"),
    path("pools/<slug:name>/provider/", fleet.PoolProvider.as_view(), name="api_pool_provider"),
    path("pools/<slug:name>/limits/", fleet.PoolLimits.as_view(), name="api_pool_limits"),
    path("pools/<slug:name>/profile/", profiles.PoolProfile.as_view(), name="api_pool_profile"),
    path("pool-profiles/", profiles.Profiles.as_view(), name="api_pool_profiles"),
    path("fleet/limits/", fleet.FleetLimits.as_view(), name="api_fleet_limits"),
    path("inventory/drift/", fleet.Drift.as_view(), name="api_drift"),
    path("inventory/<slug:kind>/", fleet.Inventory.as_view(), name="api_inventory"),
    path(
        "inventory/<slug:kind>/import/",
        fleet.InventoryImport.as_view(),
        name="api_inventory_import",
    ),
    path("rollouts/", rollouts.Rollouts.as_view(), name="api_rollouts"),
    path("rollouts/<int:rollout_id>/", include(_rollout)),
    path("forecasts/", forecasts.Forecasts.as_view(), name="api_forecasts"),
    path("forecasts/<int:forecast_id>/", forecasts.OneForecast.as_view(), name="api_forecast"),
    path("forecast-runs/", forecasts.ForecastRuns.as_view(), name="api_forecast_runs"),
    path("capacity-plan/", forecasts.CapacityPlan.as_view(), name="api_capacity_plan"),
    path("capacity-lab/", lab.Lab.as_view(), name="api_capacity_lab"),
    path("report-schedules/", reports.ReportSchedules.as_view(), name="api_report_schedules"),
    path(
        "report-schedules/<slug:name>/",
        reports.ReportSchedule.as_view(),
        name="api_report_schedule",
    ),
    path("reports/", reports.Reports.as_view(), name="api_reports"),
    path("reports/<int:report_id>/", reports.OneReport.as_view(), name="api_report"),
    path(
        "reports/<int:report_id>/<slug:kind>/",
        reports.ReportDownload.as_view(),
        name="api_report_file",
    ),
    path("policies/", policies.Policies.as_view(), name="api_policies"),
    path("policies/<slug:name>/", include(_policy)),
    path("policy-check/", policies.Check.as_view(), name="api_policy_check"),
    path("policy-acks/", policies.SnapshotAcks.as_view(), name="api_policy_acks"),
    path("tasks/", work.Tasks.as_view(), name="api_tasks"),
    path("tasks/<int:task_id>/", work.Task.as_view(), name="api_task"),
    path("tasks/<int:task_id>/steps/", work.TaskSteps.as_view(), name="api_task_steps"),
    path("tasks/<int:task_id>/caps/", work.TaskCaps.as_view(), name="api_task_caps"),
    path("task-outcomes/", work.TaskOutcomes.as_view(), name="api_task_outcomes"),
    path("objectives/", slos.Objectives.as_view(), name="api_objectives"),
    path("objectives/<int:objective_id>/", slos.Objective.as_view(), name="api_objective"),
    path("carbon/", economics.Carbon.as_view(), name="api_carbon"),
    path("carbon/grid/", economics.Grid.as_view(), name="api_carbon_grid"),
    path("carbon/power/", economics.Power.as_view(), name="api_carbon_power"),
    path("overrides/", overrides.Overrides.as_view(), name="api_overrides"),
    path("overrides/<int:override_id>/", overrides.OneOverride.as_view(), name="api_override"),
    path("hooks/", hooks.Hooks.as_view(), name="api_hooks"),
    path("hooks/<slug:name>/", hooks.OneHook.as_view(), name="api_hook"),
    path("evaluations/", evaluations.Evaluations.as_view(), name="api_evaluations"),
    path(
        "evaluations/<int:evaluation_id>/",
        evaluations.OneEvaluation.as_view(),
        name="api_evaluation",
    ),
    path("playbooks/", playbooks.Playbooks.as_view(), name="api_playbooks"),
    path("playbooks/<slug:name>/", include(_playbook)),
    path("series/", slices.SeriesView.as_view(), name="api_series"),
    path("overview/", overview.Overview.as_view(), name="api_overview"),
    path("system/", console.System.as_view(), name="api_system"),
    path("audit/", console.Trail.as_view(), name="api_audit"),
    path("audit/verify/", console.Verification.as_view(), name="api_audit_verify"),
    path("jobs/", console.Jobs.as_view(), name="api_jobs"),
    path("jobs/<int:job_id>/", console.Job.as_view(), name="api_job"),
    path("jobs/<int:job_id>/cancel/", console.JobCancel.as_view(), name="api_job_cancel"),
]

urlpatterns: list[URLPattern | URLResolver] = [
    path("v1/", include(_v1)),
    path("schema/", SpectacularAPIView.as_view(), name="schema"),
    path("docs/", reference, name="docs"),
]
