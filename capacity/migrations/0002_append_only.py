"""Replica changes are priced later: they are added, never edited."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("capacity", "0001_initial"), ("console", "0003_append_only")]
    operations = [
        migrations.RunSQL(
            "CREATE TRIGGER replica_change_append_only BEFORE UPDATE OR DELETE ON capacity_replicachange "
            "FOR EACH ROW EXECUTE FUNCTION headrace_append_only();",
            "DROP TRIGGER replica_change_append_only ON capacity_replicachange;",
        )
    ]
