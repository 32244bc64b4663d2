"""What a gateway may admit without the store, and what a lost request costs."""

from routing.contracts.enums import RequestStatus, StoreMode, UsageSource, WorkClass
from routing.contracts.snapshot import Price
from routing.contracts.usage import HoldInfo, UsageEvent
from routing.decision.lost import lost_event, void_event
from routing.decision.shares import Need, Shares, outage_mode

USD = ("w:1:tenant::d:0", "usd")
CONC = ("g:1:tenant::g", "conc")


def test_all_gateways_together_stay_within_the_ratio_of_what_was_left():
    for gateways in (1, 3, 7):
        taken = 0
        for _ in range(gateways):
            share = Shares(ratio=0.8, gateways=gateways)
            while share.take([Need(USD, 7, 1000)]):
                taken += 7
        assert 800 - 7 * gateways - gateways < taken <= 800


def test_share_takes_all_needs_or_none():
    share = Shares(ratio=1.0, gateways=1)
    assert not share.take([Need(USD, 5, 100), Need(CONC, 1, 0)])
    assert share.take([Need(USD, 100, 100)])


def test_share_is_fixed_at_first_use():
    share = Shares(ratio=0.5, gateways=1)
    assert share.take([Need(USD, 10, 20)])
    assert not share.take([Need(USD, 10, 1000)])


def test_ended_request_gives_back_its_gauge_and_what_it_did_not_use():
    share = Shares(ratio=1.0, gateways=1)
    assert share.take([Need(USD, 10, 10), Need(CONC, 1, 1)])
    share.give_back(USD, 4)
    share.give_back(CONC, 1)
    assert not share.take([Need(USD, 5, 10)])
    assert share.take([Need(USD, 4, 10), Need(CONC, 1, 1)])


def test_overdrawn_limit_has_no_share():
    assert not Shares(ratio=0.8, gateways=1).take([Need(USD, 1, -50)])


def test_degraded_admission_ends_when_its_time_is_over():
    assert outage_mode(policy="degraded", away_s=300, max_s=300) is StoreMode.DEGRADED
    assert outage_mode(policy="degraded", away_s=300.1, max_s=300) is StoreMode.CLOSED
    assert outage_mode(policy="closed", away_s=0, max_s=300) is StoreMode.CLOSED


EVENT = UsageEvent(
    "r", "1", "k", "p", "m", "m", RequestStatus.OK, UsageSource.REPORTED, WorkClass.BATCH, "x@1", 1,
    "g0", 1000, 1000, held_input_tokens=100, held_output_tokens=50, held_nanousd=200_000,
)  # fmt: skip
PRICE = Price(1, 1_000_000_000, 100_000_000, 2_000_000_000)


def lost(out: int, elapsed_s: float, itl_s: float = 0.1, held: int = 200_000) -> UsageEvent:
    event = EVENT.__class__(**{n: getattr(EVENT, n) for n in EVENT.__struct_fields__})
    info = HoldInfo(_with(event, held), PRICE, itl_s)
    return lost_event(info, out_so_far=out, elapsed_s=elapsed_s, ended_at_ms=9000)


def _with(event: UsageEvent, held_nanousd: int) -> UsageEvent:
    import msgspec

    return msgspec.structs.replace(event, held_nanousd=held_nanousd)


def test_lost_request_pays_input_and_what_it_may_have_produced():
    event = lost(out=7, elapsed_s=1.0)
    assert (event.input_tokens, event.output_tokens) == (100, 17)
    assert event.spend_nanousd == 100 * 1000 + 17 * 2000
    assert (event.status, event.usage_source) == (
        RequestStatus.INCOMPLETE,
        UsageSource.ESTIMATED,
    )


def test_lost_request_never_pays_more_than_its_hold_nor_nothing():
    assert lost(out=7, elapsed_s=1000).output_tokens == 50
    assert lost(out=50, elapsed_s=0, held=150_000).spend_nanousd == 150_000
    assert lost(out=0, elapsed_s=5, itl_s=0).spend_nanousd == 100_000


def test_void_row_is_zero_and_says_why():
    event = void_event(HoldInfo(EVENT, PRICE), code="no_capacity", http_status=503, ended_at_ms=5)
    assert (event.spend_nanousd, event.input_tokens, event.error_code) == (0, 0, "no_capacity")
    assert event.ended_at_ms == 1000, "a row never ends before it began"
