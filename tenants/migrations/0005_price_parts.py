"""Prices may name cache writes, reasoning and pictures; usage rows count them."""

from django.db import migrations, models
from django.db.models import Q

# Nullable: a writer of the version before names neither column.
ADD = "ALTER TABLE tenants_usage ADD COLUMN cache_write_tokens bigint, ADD COLUMN images integer"
DROP = "ALTER TABLE tenants_usage DROP COLUMN cache_write_tokens, DROP COLUMN images"


class Migration(migrations.Migration):
    dependencies = [("capacity", "0002_append_only"), ("tenants", "0004_reconciliation")]

    operations = [
        migrations.AddField(
            model_name="pricerow",
            name="cache_write_nanousd",
            field=models.BigIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="pricerow",
            name="image_nanousd",
            field=models.BigIntegerField(default=0, db_default=0),
        ),
        migrations.AddField(
            model_name="pricerow",
            name="reasoning_nanousd",
            field=models.BigIntegerField(blank=True, null=True),
        ),
        migrations.AddConstraint(
            model_name="pricerow",
            constraint=models.CheckConstraint(
                condition=Q(image_nanousd__gte=0)
                & (Q(cache_write_nanousd=None) | Q(cache_write_nanousd__gte=0))
                & (Q(reasoning_nanousd=None) | Q(reasoning_nanousd__gte=0)),
                name="price_parts_not_negative",
            ),
        ),
        migrations.RunSQL(ADD, DROP),
    ]
