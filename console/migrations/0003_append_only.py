"""Append-only tables: the database itself refuses update and delete."""

from django.db import migrations

FORBID = """
CREATE FUNCTION headrace_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON console_auditevent
  FOR EACH ROW EXECUTE FUNCTION headrace_append_only();
"""
ALLOW = """
DROP TRIGGER audit_append_only ON console_auditevent;
DROP FUNCTION headrace_append_only();
"""


class Migration(migrations.Migration):
    dependencies = [("console", "0002_initial")]
    operations = [migrations.RunSQL(FORBID, ALLOW)]
