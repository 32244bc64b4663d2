"""Tasks of agents: their sums, their outcome, and what a usage row says of its task."""

import django.db.models.deletion
from django.db import migrations, models

# Nullable: a writer of the version before names none of these columns.
COLUMNS = """
ALTER TABLE tenants_usage ADD COLUMN session varchar(120), ADD COLUMN parent_id varchar(120),
  ADD COLUMN task_outcome varchar(16), ADD COLUMN task_score double precision;
CREATE INDEX usage_by_task ON tenants_usage (tenant_id, task_id, request_id) WHERE task_id <> '';
"""
DROP = """
DROP INDEX usage_by_task;
ALTER TABLE tenants_usage DROP COLUMN session, DROP COLUMN parent_id,
  DROP COLUMN task_outcome, DROP COLUMN task_score;
"""


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0008_quota_requests"),
    ]

    operations = [
        migrations.CreateModel(
            name="WorkTask",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("task", models.CharField(max_length=120)),
                ("kind", models.CharField(blank=True, max_length=64)),
                ("parent", models.CharField(blank=True, max_length=120)),
                ("session", models.CharField(blank=True, max_length=120)),
                ("first_at", models.DateTimeField()),
                ("last_at", models.DateTimeField()),
                (
                    "outcome",
                    models.CharField(
                        blank=True,
                        choices=[("success", "success"), ("failure", "failure")],
                        max_length=16,
                    ),
                ),
                ("score_ratio", models.FloatField(blank=True, null=True)),
                ("outcome_at", models.DateTimeField(blank=True, null=True)),
                ("outcome_source", models.CharField(blank=True, max_length=16)),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="WorkTaskPart",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("model", models.CharField(max_length=200)),
                ("pool", models.CharField(blank=True, max_length=120)),
                ("requests", models.BigIntegerField(default=0)),
                ("failed", models.BigIntegerField(default=0)),
                ("cancelled", models.BigIntegerField(default=0)),
                ("input_tokens", models.BigIntegerField(default=0)),
                ("cached_tokens", models.BigIntegerField(default=0)),
                ("output_tokens", models.BigIntegerField(default=0)),
                ("spend_nanousd", models.BigIntegerField(default=0)),
                (
                    "task",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="parts",
                        to="tenants.worktask",
                    ),
                ),
            ],
        ),
        migrations.AddIndex(
            model_name="worktask",
            index=models.Index(fields=["tenant", "-id"], name="work_task_by_tenant"),
        ),
        migrations.AddIndex(
            model_name="worktask",
            index=models.Index(fields=["first_at"], name="work_task_by_start"),
        ),
        migrations.AddIndex(
            model_name="worktask",
            index=models.Index(
                condition=models.Q(("outcome_at__isnull", False)),
                fields=["outcome_at"],
                name="work_task_by_outcome",
            ),
        ),
        migrations.AddIndex(
            model_name="worktask",
            index=models.Index(fields=["last_at"], name="work_task_by_end"),
        ),
        migrations.AddConstraint(
            model_name="worktask",
            constraint=models.UniqueConstraint(fields=("tenant", "task"), name="work_task_once"),
        ),
        migrations.AddConstraint(
            model_name="worktask",
            constraint=models.CheckConstraint(
                condition=models.Q(("outcome__in", ["", "success", "failure"])),
                name="work_task_outcome_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="worktask",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("score_ratio", None),
                    models.Q(("score_ratio__gte", 0), ("score_ratio__lte", 1)),
                    _connector="OR",
                ),
                name="work_task_score_is_ratio",
            ),
        ),
        migrations.AddConstraint(
            model_name="worktaskpart",
            constraint=models.UniqueConstraint(
                fields=("task", "model", "pool"), name="work_part_once"
            ),
        ),
        migrations.RunSQL(COLUMNS, DROP),
    ]
