"""What caused the bill, in sentences: how much it moved, by volume or by price, and who did."""

from collections.abc import Iterator, Mapping

from django.urls import reverse

from console.web import units
from console.web.answers import Answer, NextStep
from tenants.ledger.bill import Bill, Mover

SAME = 0.05  # of the bill before: less is no change to speak of
MTOK = 1_000_000

Labels = Mapping[tuple[str, str], str]


def bill_answer(bill: Bill, labels: Labels, period: str) -> Answer:
    """The answer to "what caused the bill". `labels` words a subject by (dimension, subject)."""
    now, before, change = bill.now.spend_nanousd, bill.before.spend_nanousd, bill.change_nanousd
    if not now and not before:
        quiet = NextStep("Watch what runs now", reverse("live"))
        return Answer("No spend in either period.", steps=(quiet,))
    earlier = f"{units.usd_short(before)} USD in the {period} before"
    moved = f"{units.usd_short(now)} USD against {earlier}"
    if before and abs(change) < SAME * before:
        headline, state, word = f"The bill is as before: {moved}.", "ok", "as before"
    else:
        word = "up" if change > 0 else "down"
        headline, state = f"The bill is {word}: {moved}.", "warn" if change > 0 else "ok"
    reasons = (*_effects(bill), *_movers(bill, labels))
    return Answer(headline, reasons, tuple(_steps(bill, labels)), state, word)


def effects(bill: Bill) -> tuple[int, int] | None:
    """What of the change is more tokens at the earlier price, and what a dearer token (nano-USD).

    The two add up to the change. None when the earlier period, or this one, has no tokens.
    """
    if not bill.before.tokens or not bill.now.tokens:
        return None
    grown = bill.now.tokens - bill.before.tokens
    volume = bill.before.spend_nanousd * grown // bill.before.tokens
    return volume, bill.change_nanousd - volume


def _effects(bill: Bill) -> Iterator[str]:
    found = effects(bill)
    if found is None:
        return
    volume, dearer = found
    yield (
        f"{units.usd_short(volume)} USD of the change is volume:"
        f" {units.tokens(bill.now.tokens)} tokens against {units.tokens(bill.before.tokens)}."
    )
    each = [side.spend_nanousd * MTOK // side.tokens for side in (bill.now, bill.before)]
    yield (
        f"{units.usd_short(dearer)} USD is what a token costs, by price and mix:"
        f" {units.usd_short(each[0])} USD a million tokens against {units.usd_short(each[1])}."
    )


def _movers(bill: Bill, labels: Labels) -> Iterator[str]:
    for dimension in ("tenant", "key", "model", "class"):
        movers = bill.movers.get(dimension, ())
        if len(movers) < 2 or not movers[0].change_nanousd:
            continue
        one = movers[0]
        label = _label(one, labels)
        tokens = "no traffic before" if one.tokens_ratio is None else f"{one.tokens_ratio:.1f}x"
        words = f"on {tokens} the tokens" if one.tokens_ratio is not None else f"with {tokens}"
        change = units.usd_short(one.change_nanousd)
        yield f"{dimension.capitalize()} {label} moved most: {change} USD, {words}."


def _steps(bill: Bill, labels: Labels) -> Iterator[NextStep]:
    tenants = bill.movers.get("tenant", ())
    if tenants and tenants[0].change_nanousd:
        slug = _label(tenants[0], labels)
        yield NextStep(f"See what {slug} spends on", f"{reverse('spend')}?tenant={slug}")
        yield NextStep(f"Set a budget of {slug}", reverse("tenant", kwargs={"slug": slug}))
    found = effects(bill)
    if found is not None and abs(found[1]) > abs(found[0]):
        yield NextStep("See which price changed", reverse("prices"))
    yield NextStep("See which tasks cost most", reverse("tasks"))


def _label(one: Mover, labels: Labels) -> str:
    return labels.get((one.dimension, one.subject), one.subject) or "unnamed"
