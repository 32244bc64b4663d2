"""State what a region's grid and a kind of hardware take, with the source of the figure."""

from django.db import transaction

from console.audit.rules import Actor
from console.audit.services import record
from console.errors import InvalidInput
from telemetry.models import GridInput, PowerInput


@transaction.atomic
def state_grid(
    *, region: str, g_co2e_per_kwh: float, pue: float, source: str, actor: Actor
) -> None:
    """Intensity (g CO2e per kWh) and PUE of a region. Raises `InvalidInput` naming the field."""
    region, source = region.strip(), source.strip()
    _check_source(source)
    if not 1 <= len(region) <= 64:
        raise InvalidInput("Name a region as pools do.", field="region")
    if not 0 <= g_co2e_per_kwh <= 2000:
        raise InvalidInput(
            "From 0 to 2000 grams CO2e per kWh.",
            field="g_co2e_per_kwh",
            hint="Grids lie between about 20 and 900.",
        )
    if not 1 <= pue <= 3:
        raise InvalidInput("From 1 to 3.", field="pue", hint="1.1 to 1.6 is usual.")
    row = GridInput.objects.select_for_update().filter(region=region).first()
    before = row and {"g_co2e_per_kwh": row.g_co2e_per_kwh, "pue": row.pue, "source": row.source}
    after = {"g_co2e_per_kwh": g_co2e_per_kwh, "pue": pue, "source": source}
    if before == after:
        return
    GridInput.objects.update_or_create(region=region, defaults=after)
    record(
        actor=actor,
        act="grid_stated",
        object_type="region",
        object_id=region,
        before=before,
        after=after,
    )


@transaction.atomic
def state_power(*, hardware: str, power_w: float, source: str, actor: Actor) -> None:
    """Watts of one GPU of a kind of hardware. Raises `InvalidInput` naming the field."""
    hardware, source = hardware.strip(), source.strip()
    _check_source(source)
    if not 1 <= len(hardware) <= 64:
        raise InvalidInput("Name the hardware as pools do.", field="hardware")
    if not 0 < power_w <= 5000:
        raise InvalidInput("Above 0, up to 5000 W.", field="power_w", hint="Of one GPU.")
    row = PowerInput.objects.select_for_update().filter(hardware=hardware).first()
    before = row and {"power_w": row.power_w, "source": row.source}
    after = {"power_w": power_w, "source": source}
    if before == after:
        return
    PowerInput.objects.update_or_create(hardware=hardware, defaults=after)
    record(
        actor=actor,
        act="power_stated",
        object_type="hardware",
        object_id=hardware,
        before=before,
        after=after,
    )


def _check_source(source: str) -> None:
    if not 3 <= len(source) <= 300:
        raise InvalidInput(
            "Say where the figure comes from.",
            field="source",
            hint="For example: provider's 2025 report; measured at the PDU in May.",
        )
