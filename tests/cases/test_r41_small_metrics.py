"""R41: the metrics page stays small whatever callers send."""

import json
import random
import re
import time
from pathlib import Path

import httpx
import redis

from routing.contracts.enums import WorkClass
from routing.contracts.snapshot import KeyEntry
from tests.gatewaying import body_of, connect, raw_request, read_response, serving
from tests.stack import PEPPER, api_key, make_snapshot, publish, tenant, wait_until
from tests.upstream import UpstreamThread

TENANTS = 1_000  # of the 10,000 of the case; the bound on labels is 200 either way
KEPT = 100


def page(url: str) -> str:
    since = time.monotonic()
    text = httpx.get(f"{url}/metrics", trust_env=False).text
    assert time.monotonic() - since < 1
    assert len(text) < 5_000_000
    assert sum(1 for line in text.splitlines() if not line.startswith("#")) < 5000
    return text


def test_labels_are_a_closed_set(tmp_path: Path, store: "redis.Redis[bytes]") -> None:
    draw = random.Random(41)
    names = [f"t{i:05d}" for i in range(TENANTS)]
    secrets = {name: f"secret-{name}" for name in names}
    keyed: dict[str, KeyEntry] = dict(api_key(n, s, id=f"k-{n}") for n, s in secrets.items())
    tenants = {n: tenant(n, default_class=WorkClass.BATCH) for n in names}
    with (
        UpstreamThread() as upstream,
        serving(tmp_path, upstream, tenants=tenants, keys=keyed) as gateway,
        connect(gateway) as sock,
    ):
        for name in names:
            word = f"x{draw.getrandbits(40):x}"
            model = word if draw.random() < 0.5 else "alpha-8b"
            path = f"/v1/{word}" if draw.random() < 0.2 else "/v1/chat/completions"
            body = json.dumps(body_of(model=model, user=word)).encode()
            raw = raw_request(body, path, f"user-agent: {word}\r\nx-api-key: a\r\n")
            auth = f"Bearer {secrets[name]}".encode()
            sock.sendall(re.sub(rb"Bearer \S+", auth, raw))
            assert read_response(sock).startswith(b"HTTP/1.1 ")
        text = page(gateway.admin_url)
        labels = set(re.findall(r'="([^"]*)"', text))
        assert not [v for v in labels if v.startswith(("x", "/", "secret"))]
        assert 'tenant="other"' in text
        assert len({v for v in labels if v.startswith("t0")}) <= 200
        assert PEPPER not in text
        few = {n: tenants[n] for n in names[:KEPT]}
        left = make_snapshot(
            [upstream.address], number=2, tenants=few,
            keys={d: k for d, k in keyed.items() if k.tenant_id in few},
        )  # fmt: skip
        publish(store, left)
        wait_until(lambda: "headrace_snapshot_number 2" in page(gateway.admin_url), 3, "swap")
        gone = set(re.findall(r'tenant="(t\d+)"', page(gateway.admin_url))) - set(few)
        assert not gone
