"""What a GPU-second of our own pools costs, added and never edited; places for what tokens cost."""

import django.db.models.deletion
from django.db import migrations, models

APPEND_ONLY = """
CREATE TRIGGER pool_price_append_only BEFORE UPDATE OR DELETE ON tenants_poolprice
  FOR EACH ROW EXECUTE FUNCTION headrace_append_only();
"""
DROP = "DROP TRIGGER pool_price_append_only ON tenants_poolprice"


class Migration(migrations.Migration):
    dependencies = [
        ("capacity", "0006_playbooks"),
        ("tenants", "0010_work_task_parents"),
    ]

    operations = [
        migrations.AddField(
            model_name="usagerollup",
            name="reserved_nanousd_per_mtok",
            field=models.BigIntegerField(null=True),
        ),
        migrations.AddField(
            model_name="usagerollup",
            name="used_nanousd_per_mtok",
            field=models.BigIntegerField(null=True),
        ),
        migrations.CreateModel(
            name="PoolPrice",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("version", models.PositiveIntegerField()),
                ("valid_from", models.DateTimeField()),
                ("gpu_second_nanousd", models.BigIntegerField()),
                ("note", models.CharField(blank=True, max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "pool",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="capacity.pool",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("pool", "version"), name="pool_price_version_once"
                    ),
                    models.UniqueConstraint(
                        fields=("pool", "valid_from"), name="pool_price_moment_once"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("gpu_second_nanousd__gte", 0)),
                        name="pool_price_not_negative",
                    ),
                ],
            },
        ),
        migrations.RunSQL(APPEND_ONLY, DROP),
    ]
