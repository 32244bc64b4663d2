"""Named resources: limits on them, and their prices, added and never edited."""

from django.db import migrations, models

APPEND_ONLY = """
CREATE TRIGGER resource_price_append_only BEFORE UPDATE OR DELETE ON tenants_resourceprice
  FOR EACH ROW EXECUTE FUNCTION headrace_append_only();
"""
DROP = "DROP TRIGGER resource_price_append_only ON tenants_resourceprice"


class Migration(migrations.Migration):
    dependencies = [
        ("capacity", "0002_append_only"),
        ("tenants", "0006_limit_anchor"),
    ]

    operations = [
        migrations.CreateModel(
            name="ResourcePrice",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("resource", models.CharField(max_length=100)),
                ("version", models.PositiveIntegerField()),
                ("valid_from", models.DateTimeField()),
                ("unit_nanousd", models.BigIntegerField()),
                ("note", models.CharField(blank=True, max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
        ),
        migrations.RemoveConstraint(
            model_name="limit",
            name="limit_once",
        ),
        migrations.RemoveConstraint(
            model_name="limit",
            name="limit_names_its_subject",
        ),
        migrations.AddField(
            model_name="limit",
            name="resource",
            field=models.CharField(blank=True, db_default="", default="", max_length=100),
        ),
        migrations.AlterField(
            model_name="limit",
            name="scope",
            field=models.CharField(
                choices=[
                    ("tenant", "tenant"),
                    ("key", "key"),
                    ("tenant_model", "tenant_model"),
                    ("tenant_class", "tenant_class"),
                    ("resource", "resource"),
                ],
                max_length=16,
            ),
        ),
        migrations.AddConstraint(
            model_name="limit",
            constraint=models.UniqueConstraint(
                fields=(
                    "tenant",
                    "scope",
                    "key",
                    "model",
                    "work_class",
                    "resource",
                    "dimension",
                    "window",
                ),
                name="limit_once",
                nulls_distinct=False,
            ),
        ),
        migrations.AddConstraint(
            model_name="limit",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("key", None), ("model", None), ("scope", "tenant"), ("work_class", "")
                    ),
                    models.Q(
                        ("key__isnull", False),
                        ("model", None),
                        ("scope", "key"),
                        ("work_class", ""),
                    ),
                    models.Q(
                        ("key", None),
                        ("model__isnull", False),
                        ("scope", "tenant_model"),
                        ("work_class", ""),
                    ),
                    models.Q(
                        ("key", None),
                        ("model", None),
                        ("scope", "tenant_class"),
                        ("work_class__in", ["interactive", "standard", "batch"]),
                    ),
                    models.Q(
                        ("key", None), ("model", None), ("scope", "resource"), ("work_class", "")
                    ),
                    _connector="OR",
                ),
                name="limit_names_its_subject",
            ),
        ),
        migrations.AddConstraint(
            model_name="limit",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("scope", "resource"), models.Q(("resource", ""), _negated=True)),
                    models.Q(models.Q(("scope", "resource"), _negated=True), ("resource", "")),
                    _connector="OR",
                ),
                name="limit_of_resource_names_it",
            ),
        ),
        migrations.AddConstraint(
            model_name="resourceprice",
            constraint=models.UniqueConstraint(
                fields=("resource", "version"), name="resource_price_version_once"
            ),
        ),
        migrations.AddConstraint(
            model_name="resourceprice",
            constraint=models.UniqueConstraint(
                fields=("resource", "valid_from"), name="resource_price_moment_once"
            ),
        ),
        migrations.AddConstraint(
            model_name="resourceprice",
            constraint=models.CheckConstraint(
                condition=models.Q(("unit_nanousd__gte", 0)), name="resource_price_not_negative"
            ),
        ),
        migrations.RunSQL(APPEND_ONLY, DROP),
    ]
