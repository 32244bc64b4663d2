"""A scenario as a JSON document: what `manage.py simulate` reads.

Names are those of `scenario` and `workload`; an unknown one is refused, with its place.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec

from capacity.simulation.profile_document import (
    PrefillDocument,
    ProfileError,
    SpeculationPart,
    TierPart,
    is_read_apart,
    prefill_of,
    profile_named,
    speculating,
    tiers_of,
)
from capacity.simulation.profiles import EngineProfile
from capacity.simulation.scenario import (
    ClientSpec,
    Electricity,
    FaultSpec,
    PolicySpec,
    ReplicaSpec,
    Scenario,
    TenantSpec,
)
from capacity.simulation.workload import Arrival, Lengths, Phase, fixed, lognormal, stream
from routing.contracts.enums import WorkClass
from routing.contracts.snapshot import Limit, Price
from telemetry.stats.carbon import Inputs

MOST_REPLICAS: Final = 10_000
MOST_VIRTUAL_S: Final = 31 * 86_400.0
MOST_GATEWAYS: Final = 64
MOST_GPUS: Final = 1024  # of one replica
MOST_POWER_W: Final = 5_000.0  # of one GPU, as the page of carbon takes it
MOST_G_PER_KWH: Final = 2_000.0
MOST_PUE: Final = 5.0
MOST_RATE_PER_S: Final = 1e6  # of one stream; more than a gateway's core decides by far

_Spec = TypeVar("_Spec", PolicySpec, ClientSpec)


class DocumentError(ValueError):
    """The document cannot be run; the text names the field."""


class Size(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Token counts: always `mean`, or lognormal with a coefficient of variation."""

    mean: float
    cv: float = 0.0


class ElectricityPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one replica: GPUs, watts of one, grams CO2e a kWh of its grid, facility over IT energy."""

    gpus: int
    power_w: float
    grid_g_per_kwh: float
    pue: float

    def electricity(self) -> Electricity:
        """The same. Raises `DocumentError` for what no site has."""
        checks = (
            (1 <= self.gpus <= MOST_GPUS, f"gpus: 1 to {MOST_GPUS}"),
            (0 < self.power_w <= MOST_POWER_W, f"power_w: above 0, at most {MOST_POWER_W:.0f}"),
            (
                0 <= self.grid_g_per_kwh <= MOST_G_PER_KWH,
                f"grid_g_per_kwh: 0 to {MOST_G_PER_KWH:.0f}",
            ),
            (1 <= self.pue <= MOST_PUE, f"pue: 1 to {MOST_PUE:.0f}"),
        )
        for holds, text in checks:
            if not holds:
                raise DocumentError(f"fleet: electricity: {text}")
        return Electricity(self.gpus, Inputs(self.power_w, self.grid_g_per_kwh, self.pue))


class FleetPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replicas alike; their ids are the pool's name and a number.

    `profile` is a name of the catalogue, or a profile's file (`.json`) beside the document; with
    `prefill` it decodes what another engine has computed.
    """

    profile: str
    replicas: int
    pool: str = "pool"
    ready_at_s: float = 0.0
    speculation: SpeculationPart | None = None
    tiers: tuple[TierPart, ...] = ()
    prefill: PrefillDocument | None = None
    electricity: ElectricityPart | None = None

    def files(self) -> list[str]:
        """Names of the profiles that it needs from files and pools."""
        names = [self.profile, self.prefill.profile if self.prefill else ""]
        return [name for name in names if is_read_apart(name)]

    def spec(self, files: Mapping[str, EngineProfile]) -> ReplicaSpec:
        """A replica of them, still without its id. Raises `ProfileError`."""
        profile = profile_named(self.profile, files)
        if self.speculation is not None:
            profile = speculating(profile, self.speculation)
        if self.tiers:
            profile = replace(profile, tiers=tiers_of(self.tiers))
        prefill = prefill_of(self.prefill, files) if self.prefill else None
        electricity = self.electricity.electricity() if self.electricity else None
        return ReplicaSpec("", profile, self.pool, self.ready_at_s, prefill, electricity)


class TenantPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant; nano-dollars per million tokens."""

    id: str
    limits: tuple[Limit, ...] = ()
    weight: float = 1.0
    input_nanousd: int = 0
    cached_nanousd: int = 0
    output_nanousd: int = 0


class StreamPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tenant's calls: Poisson (`cv` 1), even (0) or bursty (above 1)."""

    rate_per_s: float
    input: Size
    output: Size
    tenant: str = "t"
    work_class: WorkClass = WorkClass.STANDARD
    from_s: float = 0.0
    until_s: float | None = None
    cv: float = 1.0


class TracePart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of arrivals, in one of the forms of `traces`; `lengths` is ServeGen's second file."""

    form: str
    file: str
    lengths: str = ""


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole document. `policy` and `clients` have the names of their classes."""

    until_s: float
    fleet: tuple[FleetPart, ...]
    workload: tuple[StreamPart, ...] = ()
    traces: tuple[TracePart, ...] = ()
    tenants: tuple[TenantPart, ...] = ()
    policy: dict[str, Any] = {}
    clients: dict[str, Any] = {}
    faults: tuple[FaultSpec, ...] = ()
    from_s: float = 0.0
    gateways: int = 1
    seed: int = 1


def read_document(raw: bytes) -> Document:
    """Parse and check. Raises `DocumentError`."""
    try:
        document = msgspec.json.decode(raw, type=Document)
    except msgspec.MsgspecError as error:
        raise DocumentError(str(error)) from error
    replicas = sum(part.replicas for part in document.fleet)
    checks = (
        (0 < document.until_s <= MOST_VIRTUAL_S, f"until_s: between 0 and {MOST_VIRTUAL_S:.0f}"),
        (0 <= document.from_s < document.until_s, "from_s: from 0 to below until_s"),
        (1 <= document.gateways <= MOST_GATEWAYS, f"gateways: 1 to {MOST_GATEWAYS}"),
        (1 <= replicas <= MOST_REPLICAS, f"fleet: 1 to {MOST_REPLICAS} replicas"),
        (
            min(part.replicas for part in document.fleet or [FleetPart("", 0)]) > 0,
            "fleet: replicas",
        ),
        (bool(document.workload or document.traces), "workload: a stream or a trace is needed"),
        (
            all(0 < part.rate_per_s <= MOST_RATE_PER_S for part in document.workload),
            f"workload: rate_per_s above 0, at most {MOST_RATE_PER_S:.0f}",
        ),
    )
    for holds, text in checks:
        if not holds:
            raise DocumentError(text)
    return document


def scenario_of(
    document: Document, files: Mapping[str, EngineProfile] = MappingProxyType({})
) -> Scenario:
    """The scenario it describes; `files` are the profiles read. Raises `DocumentError`."""
    replicas: list[ReplicaSpec] = []
    for part in document.fleet:
        try:
            spec = part.spec(files)
        except ProfileError as error:
            raise DocumentError(f"fleet: {error}") from error
        replicas += [
            replace(spec, id=f"{part.pool}-{len(replicas) + n}") for n in range(part.replicas)
        ]
    known = {one.id for one in replicas}
    for fault in document.faults:
        if fault.replica not in known:
            raise DocumentError(
                f"faults: no replica {fault.replica!r}; there is {replicas[0].id!r}"
            )
    return Scenario(
        tuple(replicas),
        document.until_s,
        from_s=document.from_s,
        tenants=tuple(_tenant(part) for part in document.tenants),
        clients=_clients(document.clients),
        policy=_policy(document.policy),
        faults=document.faults,
        gateways=document.gateways,
    )


def streams_of(document: Document) -> list[Iterator[Arrival]]:
    """The generated streams of the document, each an iterator of arrivals."""
    return [
        stream(
            [
                Phase(
                    part.from_s,
                    document.until_s if part.until_s is None else part.until_s,
                    part.rate_per_s,
                    _lengths(part.input),
                    _lengths(part.output),
                    part.cv,
                )
            ],
            document.seed + number,
            tenant=part.tenant,
            work_class=part.work_class,
        )
        for number, part in enumerate(document.workload)
    ]


def _policy(given: dict[str, Any]) -> PolicySpec:
    _refuse_unknown(given, {field.name for field in fields(PolicySpec)}, "policy")
    return _converted(given, PolicySpec, "policy")


def _clients(given: dict[str, Any]) -> ClientSpec:
    _refuse_unknown(given, {field.name for field in fields(ClientSpec)}, "clients")
    return _converted(given, ClientSpec, "clients")


def _refuse_unknown(given: dict[str, Any], known: set[str], place: str) -> None:
    """Decoding into a dataclass would leave them out in silence."""
    if unknown := sorted(set(given) - known):
        raise DocumentError(
            f"{place}: no field {unknown[0]!r}; there are {', '.join(sorted(known))}"
        )


def _converted(given: dict[str, Any], kind: type[_Spec], place: str) -> _Spec:
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise DocumentError(f"{place}: {error}") from error


def _tenant(part: TenantPart) -> TenantSpec:
    price = Price(1, part.input_nanousd, part.cached_nanousd, part.output_nanousd)
    return TenantSpec(part.id, part.limits, part.weight, price)


def _lengths(size: Size) -> Lengths:
    return lognormal(size.mean, size.cv) if size.cv else fixed(max(1, round(size.mean)))
