"""What overrides do, whatever their order: the tighter holds, and an ended one does nothing."""

import random

from hypothesis import given
from hypothesis import strategies as st

from routing.contracts.enums import WorkClass
from routing.contracts.override import (
    Override,
    OverrideKind,
    decode_overrides,
    encode_overrides,
)
from routing.decision.degrade import (
    applying,
    concurrency_limit,
    output_cap,
    paused,
    prompt_too_long,
    shed,
)

NOW_MS = 1_000_000
overrides = st.builds(
    Override,
    id=st.integers(1, 10_000),
    kind=st.sampled_from(OverrideKind),
    ends_at_ms=st.integers(NOW_MS - 5_000, NOW_MS + 5_000),
    reason=st.just("Why."),
    tenant_id=st.sampled_from(["", "acme", "globex"]),
    work_class=st.sampled_from([None, *WorkClass]),
    model=st.sampled_from(["", "m1", "m2"]),
    amount=st.integers(1, 5_000),
    admitted_ratio=st.floats(0, 0.99),
)
sets = st.lists(overrides, max_size=20, unique_by=lambda one: one.id)


def decided(items: list[Override], now_ms: int) -> tuple[object, ...]:
    """Everything that can be decided for one request."""

    def of(kind: OverrideKind) -> list[Override]:
        return applying(
            items,
            kind,
            tenant_id="acme",
            work_class=WorkClass.BATCH,
            model="m1",
            now_ms=now_ms,
        )

    wait = paused(of(OverrideKind.PAUSE), "r1", now_ms)
    long = prompt_too_long(of(OverrideKind.CONTEXT_CAP), 2_000, now_ms)
    return (
        wait and wait.retry_after_s,
        shed(of(OverrideKind.SHED), "r1"),
        output_cap(of(OverrideKind.OUTPUT_CAP), 4096),
        long and (long.retry_after_s, long.message),
        concurrency_limit(items, "acme", now_ms),
    )


@given(sets, st.randoms(use_true_random=False))
def test_order_and_repetition_change_nothing(items: list[Override], chance: random.Random) -> None:
    mixed = [*items, *items]
    chance.shuffle(mixed)
    assert decided(mixed, NOW_MS) == decided(items, NOW_MS)


@given(sets)
def test_what_has_ended_is_as_if_it_had_never_been(items: list[Override]) -> None:
    living = [one for one in items if one.ends_at_ms > NOW_MS]
    assert decided(items, NOW_MS) == decided(living, NOW_MS)
    assert decided(items, NOW_MS + 5_000) == decided([], NOW_MS + 5_000)


@given(sets, overrides)
def test_another_override_never_loosens(items: list[Override], more: Override) -> None:
    before, after = decided(items, NOW_MS), decided([*items, more], NOW_MS)
    assert after[2] <= before[2]  # type: ignore[operator]
    for had, has in zip(before[:2], after[:2], strict=True):
        assert had is None or has is not None
    assert before[4] is None or after[4].amount <= before[4].amount  # type: ignore[attr-defined]


@given(sets)
def test_equal_sets_have_equal_versions_and_come_back_whole(items: list[Override]) -> None:
    raw, version = encode_overrides(tuple(items))
    again, same = encode_overrides(tuple(reversed(items)))
    assert (raw, version) == (again, same)
    assert sorted(decode_overrides(raw), key=lambda one: one.id) == sorted(
        items, key=lambda one: one.id
    )
