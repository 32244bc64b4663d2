"""The empty column that 0009 made the code forget goes from the table.

Code since 0009 neither reads nor writes it, so old processes run beside this step; only code from
before 0009 would fail, and an upgrade from there passes 0009 first. The lock is held for a change
of the catalogue alone, however many replicas there are, and waited for as long as the connection's
`lock_timeout` says.
"""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("capacity", "0012_profiles")]
    operations = [
        migrations.RunSQL(
            "ALTER TABLE capacity_replica DROP COLUMN IF EXISTS node_id",
            "ALTER TABLE capacity_replica ADD COLUMN IF NOT EXISTS node_id bigint NULL "
            "REFERENCES capacity_node (id) DEFERRABLE INITIALLY DEFERRED",
        )
    ]
