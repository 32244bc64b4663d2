"""The ledger's partitioned tables, and append-only triggers.

`headrace_ensure_partition(table, day)` makes a day's partition if it is missing; the ledger writer
calls it for each day of a batch. Retention drops partitions.
"""

from django.db import migrations

CREATE = """
CREATE TABLE tenants_usage (
  day date NOT NULL,
  request_id uuid NOT NULL,
  kind char(1) NOT NULL CHECK (kind IN ('s', 'v', 'w', 'r')),
  tenant_id bigint NOT NULL REFERENCES tenants_tenant(id),
  key_id bigint NOT NULL REFERENCES tenants_apikey(id),
  project_id bigint NOT NULL REFERENCES tenants_project(id),
  model_asked varchar(200) NOT NULL,
  model varchar(200) NOT NULL,
  pool varchar(120) NOT NULL,
  replica varchar(120) NOT NULL,
  region varchar(64) NOT NULL,
  work_class varchar(16) NOT NULL CHECK (work_class IN ('interactive', 'standard', 'batch')),
  status varchar(16) NOT NULL CHECK (status IN ('ok', 'failed', 'incomplete', 'cancelled')),
  usage_source varchar(16) NOT NULL CHECK (usage_source IN ('reported', 'counted', 'estimated')),
  is_suspicious boolean NOT NULL,
  is_stream boolean NOT NULL,
  http_status integer NOT NULL,
  error_code varchar(64) NOT NULL,
  started_at timestamptz NOT NULL,
  first_token_at timestamptz,
  ended_at timestamptz NOT NULL,
  input_tokens bigint NOT NULL CHECK (input_tokens >= 0),
  cached_tokens bigint NOT NULL CHECK (cached_tokens >= 0 AND cached_tokens <= input_tokens),
  output_tokens bigint NOT NULL CHECK (output_tokens >= 0),
  reasoning_tokens bigint NOT NULL CHECK (reasoning_tokens >= 0),
  spend_nanousd bigint NOT NULL CHECK (spend_nanousd >= 0),
  held_input_tokens bigint NOT NULL,
  held_output_tokens bigint NOT NULL,
  held_nanousd bigint NOT NULL,
  attempts integer NOT NULL,
  policy varchar(80) NOT NULL,
  price_version integer NOT NULL,
  gateway varchar(64) NOT NULL,
  upstream_request_id varchar(200) NOT NULL,
  task_id varchar(120) NOT NULL,
  task_kind varchar(64) NOT NULL,
  step varchar(32) NOT NULL,
  hops_us jsonb NOT NULL,
  legs jsonb NOT NULL,
  PRIMARY KEY (day, request_id)
) PARTITION BY RANGE (day);
CREATE INDEX usage_by_tenant ON tenants_usage (tenant_id, day DESC, request_id DESC);
CREATE INDEX usage_by_key ON tenants_usage (key_id, day DESC, request_id DESC);
CREATE TABLE tenants_shape (
  day date NOT NULL,
  request_id uuid NOT NULL,
  tenant_id bigint NOT NULL,
  model varchar(200) NOT NULL,
  work_class varchar(16) NOT NULL,
  arrived_at timestamptz NOT NULL,
  first_token_at timestamptz,
  ended_at timestamptz NOT NULL,
  cancelled_at timestamptz,
  outcome varchar(80) NOT NULL,
  max_tokens bigint,
  input_tokens bigint NOT NULL,
  cached_tokens bigint NOT NULL,
  output_tokens bigint NOT NULL,
  session varchar(120) NOT NULL,
  task_id varchar(120) NOT NULL,
  task_kind varchar(64) NOT NULL,
  step varchar(32) NOT NULL,
  resend_count integer NOT NULL,
  pool varchar(120) NOT NULL,
  replica varchar(120) NOT NULL,
  prefix_hashes jsonb NOT NULL,
  PRIMARY KEY (day, request_id)
) PARTITION BY RANGE (day);
CREATE INDEX shape_by_tenant ON tenants_shape (tenant_id, day DESC, request_id DESC);
CREATE FUNCTION headrace_ensure_partition(parent text, of_day date) RETURNS void LANGUAGE plpgsql AS $$
DECLARE child text := parent || '_' || to_char(of_day, 'YYYYMMDD');
BEGIN
  IF to_regclass(child) IS NULL THEN
    PERFORM pg_advisory_xact_lock(hashtext(child));
    EXECUTE format('CREATE TABLE IF NOT EXISTS %I PARTITION OF %I FOR VALUES FROM (%L) TO (%L)',
                   child, parent, of_day, of_day + 1);
  END IF;
END $$;
CREATE TRIGGER usage_append_only BEFORE UPDATE OR DELETE ON tenants_usage
  FOR EACH ROW EXECUTE FUNCTION headrace_append_only();
CREATE TRIGGER adjustment_append_only BEFORE UPDATE OR DELETE ON tenants_usageadjustment
  FOR EACH ROW EXECUTE FUNCTION headrace_append_only();
CREATE TRIGGER price_append_only BEFORE UPDATE OR DELETE ON tenants_pricerow
  FOR EACH ROW EXECUTE FUNCTION headrace_append_only();
"""
DROP = """
DROP TRIGGER price_append_only ON tenants_pricerow;
DROP TRIGGER adjustment_append_only ON tenants_usageadjustment;
DROP TABLE tenants_usage, tenants_shape;
DROP FUNCTION headrace_ensure_partition(text, date);
"""


class Migration(migrations.Migration):
    dependencies = [("tenants", "0001_initial"), ("console", "0003_append_only")]
    operations = [migrations.RunSQL(CREATE, DROP)]
