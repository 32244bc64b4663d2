"""Adjustments correct every counted figure, damaged entries are parked, filters have indexes."""

from django.db import migrations, models

# `tenants_usage` is made by migration and unmanaged, so its indexes are too. Failures are rare:
# their index holds only them, and an ordinary row pays nothing for it.
ADD = """
CREATE INDEX usage_by_project ON tenants_usage (project_id, day DESC, request_id DESC);
CREATE INDEX usage_by_model ON tenants_usage (model, day DESC, request_id DESC);
CREATE INDEX usage_by_failure ON tenants_usage (status, day DESC, request_id DESC)
  WHERE status <> 'ok';
"""
DROP = """
DROP INDEX usage_by_failure;
DROP INDEX usage_by_model;
DROP INDEX usage_by_project;
"""


class Migration(migrations.Migration):
    dependencies = [("tenants", "0002_ledger")]

    operations = [
        migrations.AddField(
            model_name="usageadjustment",
            name="requests",
            field=models.SmallIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="usageadjustment",
            name="cached_tokens",
            field=models.BigIntegerField(default=0),
        ),
        migrations.CreateModel(
            name="DamagedEntry",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("stream", models.CharField(max_length=40)),
                ("entry_id", models.CharField(max_length=40)),
                ("reason", models.CharField(max_length=200)),
                ("raw", models.BinaryField()),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "indexes": [models.Index(fields=["created_at"], name="damaged_by_age")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=["stream", "entry_id"], name="damaged_entry_once"
                    )
                ],
            },
        ),
        migrations.RunSQL(ADD, DROP),
    ]
