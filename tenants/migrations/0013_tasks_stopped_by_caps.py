"""Calls that a task's cap refused are found by their task."""

from django.db import migrations

ADD = """
SET LOCAL lock_timeout = '5s';
CREATE INDEX shape_stopped_tasks ON tenants_shape (tenant_id, task_id, day DESC, request_id DESC)
  WHERE refused_scope IN ('task', 'parent_task');
"""


class Migration(migrations.Migration):
    dependencies = [("tenants", "0012_usage_operation")]

    operations = [migrations.RunSQL(ADD, "DROP INDEX shape_stopped_tasks;")]
