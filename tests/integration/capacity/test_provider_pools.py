"""Pools of hosted providers: their settings, their key at rest, what they can do, who sees what."""

import json
from pathlib import Path

import pytest
from django.test import Client

from capacity.drivers.base import DriverError, Observed, PoolSpec
from capacity.drivers.static import StaticDriver
from capacity.fleet import selectors, services
from capacity.models import ProviderKey
from console.audit.rules import SYSTEM
from console.errors import InvalidInput
from console.models import AuditEvent, Role, User
from routing.contracts.capabilities import DEFAULTS, ApiStyle, Capability
from routing.contracts.sealing import SealError, open_sealed, provider_purpose
from tests.providing import KEY, LOOPBACK, certificate
from tests.upstream import UpstreamThread

pytestmark = pytest.mark.django_db
SPEC = {"addresses": ["api.example.com:443"], "api": "openai", "upstream_model": "far-model"}


@pytest.fixture
def far() -> str:
    services.create_region(slug="eu", name="Europe", actor=SYSTEM)
    services.create_domain(region="eu", slug="a", actor=SYSTEM)
    services.create_model(name="far", context_tokens=16_384, actor=SYSTEM)
    services.create_pool(
        name="far-pool", model="far", driver="static", region="eu", domain="a", spec=SPEC,
        actor=SYSTEM,
    )  # fmt: skip
    return "far-pool"


def test_a_key_is_sealed_and_opens_for_its_pool_alone(far: str, settings: object) -> None:
    services.set_provider_key(pool=far, api_key=KEY, actor=SYSTEM)
    entry = selectors.pools_for_snapshot()[far]
    assert (entry.style, entry.has_tls, entry.served_model) == (ApiStyle.OPENAI, True, "far-model")
    assert KEY.encode() not in entry.sealed_key
    secret = settings.KEY_PEPPER.encode()  # type: ignore[attr-defined]
    assert open_sealed(secret, provider_purpose(far), entry.sealed_key) == KEY
    with pytest.raises(SealError):
        open_sealed(secret, provider_purpose("other"), entry.sealed_key)
    with pytest.raises(SealError):
        open_sealed(b"another secret", provider_purpose(far), entry.sealed_key)
    told = json.dumps([event.after for event in AuditEvent.objects.all()], default=str)
    assert KEY not in told
    assert KEY[-4:] in told
    services.remove_provider_key(pool=far, actor=SYSTEM)
    assert selectors.pools_for_snapshot()[far].sealed_key == b""


def test_a_key_set_twice_is_never_sealed_the_same(far: str) -> None:
    sealed = set()
    for _ in range(2):
        services.set_provider_key(pool=far, api_key=KEY, actor=SYSTEM)
        sealed.add(bytes(ProviderKey.objects.get().sealed))
    assert len(sealed) == 2


@pytest.mark.parametrize(
    "key", ["short", "with a space in it", "snow☃man-key", "line\nbreak-key", ""]
)
def test_what_is_no_key_is_refused(far: str, key: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        services.set_provider_key(pool=far, api_key=key, actor=SYSTEM)
    assert caught.value.field == "api_key"


def test_capabilities_are_as_usual_until_they_are_stated(far: str) -> None:
    detail = selectors.pool_detail(far)
    assert set(detail.capabilities) == {one.value for one in DEFAULTS[ApiStyle.OPENAI]}
    services.set_capabilities(pool=far, capabilities=["tools", "chat"], actor=SYSTEM)
    assert selectors.pool_detail(far).capabilities == ("chat", "tools")
    assert selectors.pools_for_snapshot()[far].capabilities == ("chat", "tools")
    for name in ("telepathy", Capability.STATE, Capability.HOSTED_TOOLS):
        with pytest.raises(InvalidInput) as caught:
            services.set_capabilities(pool=far, capabilities=["chat", name], actor=SYSTEM)
        assert caught.value.field == "capabilities"


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "localhost", "[::1]", "169.254.169.254", "2130706433", "0x7f000001",
        "10.0.0.7", "0177.0.0.1", "[fe80::1]", "file:///etc/passwd", "a/b",
        "user:secret@api.example.com",
    ],
)  # fmt: skip
def test_addresses_inside_and_odd_ones_are_refused(host: str) -> None:
    settings = SPEC | {"addresses": [f"{host}:443"]}
    with pytest.raises(DriverError):
        StaticDriver().check(PoolSpec("p", "m", settings))


@pytest.mark.parametrize(
    "change", [{"api": "other"}, {"path_prefix": "http://x"}, {"upstream_model": 7}, {"key": "k"}]
)
def test_settings_that_cannot_work_are_refused(change: dict[str, object]) -> None:
    StaticDriver().check(PoolSpec("p", "m", SPEC))
    with pytest.raises(DriverError):
        StaticDriver().check(PoolSpec("p", "m", SPEC | change))


def test_a_provider_serves_when_its_tls_does(tmp_path: Path) -> None:
    context, authority = certificate(tmp_path)
    with UpstreamThread(tls=context) as upstream:
        settings = SPEC | {"addresses": [f"{LOOPBACK}:{upstream.port}"]}
        spec = PoolSpec("p", "m", settings)
        driver = StaticDriver(str(authority), frozenset((LOOPBACK,)))
        driver.check(spec)
        handle = driver.start(spec, 0)
        assert driver.status(spec, handle).observed is Observed.SERVING
        assert driver.probe(spec, handle)
        stranger = StaticDriver("", frozenset((LOOPBACK,))).status(spec, handle)
        assert (stranger.observed, "TLS" in stranger.cause) == (Observed.STARTING, True)
        inside = StaticDriver(str(authority)).status(spec, handle)
        assert "no public address" in inside.cause
        assert upstream.requests == []


def test_the_page_and_rest_set_a_key_and_never_show_it(far: str) -> None:
    ada = User(username="ada", role=Role.ADMIN)
    ada.set_unusable_password()
    ada.save()
    client = Client()
    client.force_login(ada)
    path = f"/fleet/pools/{far}/provider/"
    usual = list(selectors.pool_detail(far).capabilities)
    done = client.post(path, {"capabilities": usual, "api_key": KEY})
    assert done.status_code == 302
    for page in (path, f"/fleet/pools/{far}/"):
        text = client.get(page).content.decode()
        assert KEY not in text
        assert KEY[-4:] in text
    assert not selectors.pool_detail(far).are_capabilities_stated
    refused = client.post(path, {"capabilities": usual, "api_key": "a b"})
    assert refused.status_code == 422
    assert "a b" not in refused.content.decode()
    client.post(path, {"capabilities": usual[:2], "forget": "on"})
    assert selectors.pool_detail(far).key_hint == ""
    assert selectors.pool_detail(far).are_capabilities_stated
