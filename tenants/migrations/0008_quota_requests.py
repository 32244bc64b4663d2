"""Tenants may ask for more; a refused request's row says what refused it."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


# Nullable: a writer of the version before names none of these columns.
ADD = """
SET LOCAL lock_timeout = '5s';
ALTER TABLE tenants_shape
  ADD COLUMN key_id bigint,
  ADD COLUMN refused_code varchar(64),
  ADD COLUMN refused_status integer,
  ADD COLUMN refused_limit varchar(120),
  ADD COLUMN refused_scope varchar(24),
  ADD COLUMN retry_after_ms bigint;
CREATE INDEX shape_refused_by_tenant ON tenants_shape (tenant_id, day DESC, request_id DESC)
  WHERE refused_code IS NOT NULL;
"""
DROP = """
DROP INDEX shape_refused_by_tenant;
ALTER TABLE tenants_shape
  DROP COLUMN key_id, DROP COLUMN refused_code, DROP COLUMN refused_status,
  DROP COLUMN refused_limit, DROP COLUMN refused_scope, DROP COLUMN retry_after_ms;
"""


class Migration(migrations.Migration):
    dependencies = [
        ("capacity", "0003_capacity_limits"),
        ("tenants", "0007_named_resources"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="QuotaRequest",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "scope",
                    models.CharField(
                        choices=[
                            ("tenant", "tenant"),
                            ("tenant_model", "tenant_model"),
                            ("tenant_class", "tenant_class"),
                            ("resource", "resource"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "work_class",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("interactive", "interactive"),
                            ("standard", "standard"),
                            ("batch", "batch"),
                        ],
                        max_length=16,
                    ),
                ),
                ("resource", models.CharField(blank=True, max_length=100)),
                (
                    "dimension",
                    models.CharField(
                        choices=[
                            ("req", "req"),
                            ("in", "in"),
                            ("out", "out"),
                            ("usd", "usd"),
                            ("conc", "conc"),
                            ("kv", "kv"),
                        ],
                        max_length=8,
                    ),
                ),
                (
                    "window",
                    models.CharField(
                        choices=[("m", "m"), ("d", "d"), ("w", "w"), ("mo", "mo"), ("g", "g")],
                        max_length=4,
                    ),
                ),
                ("amount_then", models.BigIntegerField()),
                ("amount_asked", models.BigIntegerField()),
                ("reason", models.CharField(max_length=400)),
                ("until", models.DateTimeField(blank=True, null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("open", "Open"),
                            ("granted", "Granted"),
                            ("refused", "Refused"),
                            ("withdrawn", "Withdrawn"),
                            ("ended", "Ended"),
                            ("superseded", "Superseded"),
                        ],
                        default="open",
                        max_length=16,
                    ),
                ),
                ("decided_at", models.DateTimeField(blank=True, null=True)),
                ("decision_reason", models.CharField(blank=True, max_length=400)),
                ("amount_granted", models.BigIntegerField(blank=True, null=True)),
                ("amount_back", models.BigIntegerField(blank=True, null=True)),
                ("ends_at", models.DateTimeField(blank=True, null=True)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("end_note", models.CharField(blank=True, max_length=200)),
                (
                    "asked_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "decided_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "model",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="capacity.model",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="quota_requests",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["tenant", "-id"], name="quota_request_by_tenant"),
                    models.Index(fields=["state", "-id"], name="quota_request_by_state"),
                    models.Index(
                        condition=models.Q(("ends_at__isnull", False), ("state", "granted")),
                        fields=["ends_at"],
                        name="quota_request_to_end",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("state", "open")),
                        fields=(
                            "tenant",
                            "scope",
                            "model",
                            "work_class",
                            "resource",
                            "dimension",
                            "window",
                        ),
                        name="quota_request_open_once",
                        nulls_distinct=False,
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("amount_then__gte", 0),
                            ("amount_asked__gt", models.F("amount_then")),
                            ("amount_asked__lte", 9000000000000000),
                        ),
                        name="quota_request_asks_for_more",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "state__in",
                                ["open", "granted", "refused", "withdrawn", "ended", "superseded"],
                            )
                        ),
                        name="quota_request_state_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("decided_at", None), ("state", "open")),
                            models.Q(
                                models.Q(("state", "open"), _negated=True),
                                ("decided_at__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="quota_request_decided_at_a_time",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("amount_back", None),
                                ("amount_granted", None),
                                ("state__in", ["open", "refused", "withdrawn"]),
                            ),
                            models.Q(
                                ("amount_back__isnull", False),
                                ("amount_granted__gt", models.F("amount_back")),
                                ("amount_granted__lte", models.F("amount_asked")),
                                ("state__in", ["granted", "ended", "superseded"]),
                            ),
                            _connector="OR",
                        ),
                        name="quota_request_grant_complete",
                    ),
                ],
            },
        ),
        migrations.RunSQL(ADD, DROP),
    ]
