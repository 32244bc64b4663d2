"""A usage row says which operation was called: chat, embeddings, messages and so on."""

from django.db import migrations

# Nullable: rows booked before, and a writer of the version before, do not name it.
ADD = "ALTER TABLE tenants_usage ADD COLUMN operation varchar(24);"
DROP = "ALTER TABLE tenants_usage DROP COLUMN operation;"


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0011_pool_prices"),
    ]

    operations = [migrations.RunSQL(ADD, DROP)]
