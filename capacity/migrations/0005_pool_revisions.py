"""Every pool has its first revision; a revision is never edited, as replicas run by it."""

from django.db import migrations


def first_revisions(apps, schema_editor):
    revision = apps.get_model("capacity", "PoolRevision")
    for pool in apps.get_model("capacity", "Pool").objects.all():
        revision.objects.get_or_create(
            pool=pool,
            number=pool.revision,
            defaults={
                "spec": pool.spec,
                "block_size_tokens": pool.block_size_tokens,
                "note": "as it was made",
            },
        )


class Migration(migrations.Migration):
    dependencies = [("capacity", "0004_fleet_and_rollouts"), ("console", "0003_append_only")]
    operations = [
        migrations.RunPython(first_revisions, migrations.RunPython.noop),
        migrations.RunSQL(
            "CREATE TRIGGER pool_revision_append_only BEFORE UPDATE OR DELETE ON capacity_poolrevision "
            "FOR EACH ROW EXECUTE FUNCTION headrace_append_only();",
            "DROP TRIGGER pool_revision_append_only ON capacity_poolrevision;",
        ),
    ]
