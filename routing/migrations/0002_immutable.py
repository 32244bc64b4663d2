"""A published version never changes."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("routing", "0001_initial"), ("console", "0003_append_only")]
    operations = [
        migrations.RunSQL(
            "CREATE TRIGGER policy_version_immutable BEFORE UPDATE OR DELETE ON routing_policyversion "
            "FOR EACH ROW EXECUTE FUNCTION headrace_append_only();",
            "DROP TRIGGER policy_version_immutable ON routing_policyversion;",
        )
    ]
