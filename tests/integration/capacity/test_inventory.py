"""The inventory: rows put once, CSV files all or nothing, drift, over pages and REST."""

import json
import re

import pytest
from django.test import Client
from django.utils import timezone

from capacity.fleet.catalogue import disagreements, table_page
from capacity.fleet.importer import bring_in
from capacity.fleet.rules.table import BY_NAME
from capacity.fleet.services.assets import put, reference_gpu_types
from capacity.models import Artifact, GpuType, Model, Node, Pool, Region, Replica
from console.accounts.services import issue_token
from console.audit.rules import SYSTEM
from console.errors import InvalidInput, NotFound
from console.models import AuditEvent, Job
from routing.contracts.endpoint_state import EndpointState, PoolState, encode_pool_state
from routing.contracts.enums import ReplicaHealth
from routing.store import keys
from tests import factories
from tests.factories import ACTOR, World

pytestmark = pytest.mark.django_db
NODES = (
    "name,region,domain,gpu_type,gpu_count,state,note\n"
    "n1,eu,eu-a,H100 SXM,8,in_service,rack 1\n"
    'n2,eu,eu-a,L40S,4,cordoned,"fans, loud"\n'
)


@pytest.fixture
def world(store) -> World:
    made = World()
    factories.make_tenant(made, "acme")
    factories.make_people(made)
    factories.make_fleet(made, {"p-a": 2})
    return made


def client_of(world: World, name: str) -> Client:
    client = Client()
    client.force_login(world.people[name])
    return client


def test_a_dry_run_says_what_applying_does_and_leaves_nothing(world: World) -> None:
    events, jobs = AuditEvent.objects.count(), Job.objects.count()
    looked = bring_in(kind="node", text=NODES, actor=ACTOR, is_dry_run=True)
    assert (looked.created, looked.changed, looked.same, looked.refused) == (2, 0, 0, 0)
    assert not looked.is_applied
    assert not Node.objects.exists()
    assert not GpuType.objects.exists()
    assert (AuditEvent.objects.count(), Job.objects.count()) == (events, jobs)
    done = bring_in(kind="node", text=NODES, actor=ACTOR, is_dry_run=False)
    assert done.is_applied
    assert [line.outcome for line in done.lines] == [line.outcome for line in looked.lines]
    row = Node.objects.get(name="n2")
    assert (row.gpu_type.name, row.gpu_count, row.note) == ("L40S", 4, "fans, loud")
    assert row.gpu_type.source
    acts = AuditEvent.objects.filter(pk__gt=0).values_list("act", flat=True).order_by("id")
    assert list(acts)[events:] == [
        "gpu_type.create",
        "node.create",
        "gpu_type.create",
        "node.create",
        "inventory.import",
    ]


def test_a_file_sent_twice_changes_nothing_and_a_change_is_audited(world: World) -> None:
    bring_in(kind="node", text=NODES, actor=ACTOR, is_dry_run=False)
    again = bring_in(kind="node", text=NODES, actor=ACTOR, is_dry_run=False)
    assert (again.same, again.created, again.changed) == (2, 0, 0)
    changed = NODES.replace("in_service", "out")
    assert bring_in(kind="node", text=changed, actor=ACTOR, is_dry_run=False).changed == 1
    event = AuditEvent.objects.get(act="node.change")
    assert (event.object_id, event.before, event.after) == (
        "n1",
        {"state": "in_service"},
        {"state": "out"},
    )


def test_one_fault_refuses_the_whole_file_and_every_fault_is_told(world: World) -> None:
    text = NODES + "n3,eu,nowhere,,0,in_service,\nn4,eu,eu-a,No GPU,1,in_service,\n"
    text += "n5,eu,eu-a,,2,in_service,\nn6,eu,eu-a,,x,in_service,\nn7,eu,eu-a,,0,asleep,\n"
    report = bring_in(kind="node", text=text, actor=ACTOR, is_dry_run=False)
    assert (report.is_applied, report.created, report.refused) == (False, 2, 5)
    faults = {line.line: line.faults[0] for line in report.lines if line.faults}
    assert {line: fault.column for line, fault in faults.items()} == {
        4: "domain",
        5: "gpu_type",
        6: "gpu_type",
        7: "gpu_count",
        8: "state",
    }
    assert "H100 SXM" in faults[5].hint
    assert not Node.objects.exists()


def test_every_reference_gpu_type_is_a_good_row() -> None:
    for row in reference_gpu_types().values():
        text = ",".join(row) + "\n" + ",".join(f'"{cell}"' for cell in row.values()) + "\n"
        assert bring_in(kind="gpu_type", text=text, actor=ACTOR, is_dry_run=False).created == 1
    assert GpuType.objects.get(name="H100 SXM").bf16_tflops == 989
    assert not GpuType.objects.filter(source="").exists()


def test_each_kind_is_put_and_listed_by_its_columns(world: World) -> None:
    given = {
        "region": {"slug": "us", "name": "United States"},
        "domain": {"region": "us", "slug": "us-b"},
        "gpu_type": {
            "name": "X1",
            "memory_gib": 10.5,
            "memory_tb_s": 1.0,
            "bf16_tflops": 5.0,
            "fp8_tflops": None,
            "tdp_w": 300,
            "source": "its maker",
            "note": "",
        },
        "node": {
            "name": "n1",
            "region": "us",
            "domain": "us-b",
            "gpu_type": "X1",
            "gpu_count": 8,
            "state": "in_service",
            "note": "",
        },
        "model": {
            "name": "m2",
            "context_tokens": 4096,
            "output_cap_tokens": 512,
            "bytes_per_token": 3.0,
        },
        "artifact": {
            "model": "m2",
            "version": "v1",
            "location": "/weights/m2-v1",
            "sha256": "a" * 64,
            "size_bytes": 15_000_000_000,
            "precision": "bf16",
        },
        "pool": {
            "name": "us-b-m2",
            "model": "m2",
            "driver": "simulated",
            "region": "us",
            "domain": "us-b",
            "hardware": "X1",
            "gpus_per_replica": 4,
            "block_size_tokens": 16,
            "desired_replicas": 2,
            "spec": {"profile": "demo"},
        },
    }
    assert set(given) == set(BY_NAME)
    for kind, values in given.items():
        assert put(kind=kind, values=values, actor=SYSTEM) == "created", kind
        assert put(kind=kind, values=values, actor=SYSTEM) == "same", kind
        listed = table_page(kind, limit=200).rows
        assert values in listed, kind
        assert all(set(row) == set(BY_NAME[kind].header) for row in listed), kind
    assert Region.objects.count() == 2
    with pytest.raises(NotFound):
        put(kind="rack", values={}, actor=SYSTEM)


def test_what_may_not_change_is_refused_with_what_to_do(world: World) -> None:
    pool = table_page("pool").rows[0]
    for column, value, hint in (
        ("spec", {"profile": "reference"}, "Roll the pool out."),
        ("driver", "static", "Make another pool."),
    ):
        with pytest.raises(InvalidInput) as refused:
            put(kind="pool", values={**pool, column: value}, actor=SYSTEM)
        assert (refused.value.field, refused.value.hint) == (column, hint)
    assert put(kind="pool", values={**pool, "desired_replicas": 3}, actor=SYSTEM) == "changed"
    assert Pool.objects.get(name="p-a").desired_replicas == 3
    artifact = {
        "model": "llama-8b",
        "version": "v1",
        "location": "/w",
        "sha256": "",
        "size_bytes": 1,
        "precision": "",
    }
    put(kind="artifact", values=artifact, actor=SYSTEM)
    with pytest.raises(InvalidInput) as other:
        put(kind="artifact", values={**artifact, "location": "/elsewhere"}, actor=SYSTEM)
    assert (other.value.field, Artifact.objects.get().location) == ("version", "/w")
    with pytest.raises(InvalidInput) as digest:
        put(kind="artifact", values={**artifact, "version": "v2", "sha256": "xyz"}, actor=SYSTEM)
    assert digest.value.field == "sha256"


def test_a_model_that_changes_reaches_the_gateways(world: World) -> None:
    Job.objects.all().delete()
    model = next(row for row in table_page("model").rows if row["name"] == "llama-8b")
    put(kind="model", values={**model, "context_tokens": 8192}, actor=SYSTEM)
    assert Model.objects.get(name="llama-8b").context_tokens == 8192
    assert Job.objects.filter(kind="push_snapshot", state="queued").count() == 1


def test_the_page_applies_only_what_was_looked_at(world: World) -> None:
    client = client_of(world, "ola")
    first = client.post("/inventory/import/", {"kind": "node", "csv": NODES, "act": "apply"})
    assert first.status_code == 200
    assert not Node.objects.exists()
    digest = re.search(r'name="digest" value="([0-9a-f]{64})"', first.text).group(1)
    swapped = {"kind": "node", "csv": NODES + "n9,eu,eu-a,,0,,\n", "act": "apply"}
    assert client.post("/inventory/import/", {**swapped, "digest": digest}).status_code == 200
    assert not Node.objects.exists()
    done = client.post(
        "/inventory/import/", {"kind": "node", "csv": NODES, "act": "apply", "digest": digest}
    )
    assert (done.status_code, done.headers["Location"]) == (302, "/inventory/?kind=node")
    assert "fans, loud" in client.get("/inventory/?kind=node").text
    bad = client.post("/inventory/import/", {"kind": "node", "csv": "name\n", "act": "preview"})
    assert bad.status_code == 422
    assert "lacks region, domain" in bad.text


def test_over_rest_faults_are_findings_and_writes_may_be_repeated(world: World) -> None:
    secret = issue_token(user_id=world.people["ola"].pk, name="t", actor=ACTOR).secret
    client = Client(headers={"Authorization": f"Bearer {secret}"})

    def send(method: str, path: str, body: object) -> tuple[int, dict]:
        answer = getattr(client, method)(
            f"/api/v1/inventory/{path}", json.dumps(body), content_type="application/json"
        )
        return answer.status_code, answer.json()

    status, body = send(
        "post", "node/import/", {"csv": NODES + "n3,eu,no,,0,,\n", "dry_run": False}
    )
    assert (status, body["code"], body["field"]) == (422, "import_refused", "csv")
    (finding,) = body["findings"]
    assert (finding["line"], finding["column"], bool(finding["hint"])) == (4, "domain", True)
    assert send("post", "node/import/", {"csv": NODES})[1]["created"] == 2
    assert not Node.objects.exists()
    row = {"values": {"name": "n1", "region": "eu", "domain": "eu-a"}}
    assert send("put", "node/", row) == (200, {"outcome": "created"})
    assert send("put", "node/", row) == (200, {"outcome": "same"})
    status, body = send("put", "node/", {"values": {"name": "n1", "region": "eu"}})
    assert (status, body["field"]) == (422, "domain")
    assert send("put", "rack/", {"values": {}})[0] == 404
    assert client.get("/api/v1/inventory/node/").json()["items"][0]["values"]["name"] == "n1"


def test_drift_is_what_the_engines_say_beside_the_record(
    world: World, store, django_assert_max_num_queries
) -> None:
    Pool.objects.update(kv_capacity_tokens=factories.KV_TOKENS)
    factories.scrape(store, "p-a")
    assert disagreements().drift == ()
    now_ms = int(timezone.now().timestamp() * 1000)
    good, stranger = (
        EndpointState(
            replica_id=name,
            pool="p-a",
            at_ms=now_ms,
            health=ReplicaHealth.OK,
            kv_capacity_tokens=5,
        )
        for name in ("p-a-0", "p-a-9")
    )
    state = PoolState("p-a", now_ms, [good, stranger])
    store.set(keys.pool_state("p-a"), encode_pool_state(state))
    Replica.objects.filter(name="p-a-0").update(revision=7)
    with django_assert_max_num_queries(5):
        found = disagreements()
    assert [(one.replica, one.what) for one in found.drift] == [
        ("p-a-0", "revision"),
        ("p-a-0", "KV capacity, tok"),
        ("p-a-1", "state"),
        ("p-a-9", "replica"),
    ]
    assert [one.what for one in found.placement] == ["placement of llama-8b"]
    assert "5" in client_of(world, "aud").get("/inventory/drift/").text
