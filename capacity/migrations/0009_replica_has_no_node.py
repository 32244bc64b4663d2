"""A replica's node was never filled: drivers say a host, and none places onto inventory nodes.

Old code runs beside this step and still selects the column, so only the code forgets it here. The
column, nullable and empty, is dropped by a later migration, when no code knows it any more.
"""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("capacity", "0008_forecasts_and_reports")]
    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[migrations.RemoveField("replica", "node")]
        )
    ]
