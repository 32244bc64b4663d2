"""R15: an empty budget stops paid models only, and an unpriced model is never free by accident."""

from pathlib import Path

import redis

from routing.contracts.enums import Dimension, WindowKind
from routing.contracts.snapshot import ModelEntry, Target
from tests.gatewaying import error_of, serving
from tests.stack import FREE, limit, model, usd
from tests.upstream import UpstreamThread, answer, json_script, usage

UNPRICED = ModelEntry("beta-7b", 4096, 4096, 2.5, (Target("p1"),), ())
MODELS = {
    "alpha-8b": model("alpha-8b"),
    "free-3b": model("free-3b", price=FREE),
    "beta-7b": UNPRICED,
}
ALIASES = {"gratis": "free-3b", "paid": "alpha-8b"}


def daily(amount: int) -> tuple[object, ...]:
    return (limit(Dimension.SPEND_NANOUSD, amount, WindowKind.DAY),)


def test_with_nothing_left_only_free_models_are_served(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    script = json_script(answer(used=usage(10, 995)))  # $0.002000: the whole budget
    with (
        UpstreamThread(script) as upstream,
        serving(
            tmp_path, upstream, models=MODELS, aliases=ALIASES, limits=daily(usd("0.002"))
        ) as gateway,
    ):
        assert gateway.chat(max_tokens=900).status_code == 200
        for name, status in (("free-3b", 200), ("gratis", 200), ("alpha-8b", 429), ("paid", 429)):
            response = gateway.chat(model=name, max_tokens=10)
            assert response.status_code == status, name
            if status == 429:
                assert error_of(response.json()) == "budget_exceeded"
                assert response.headers["x-should-retry"] == "false"
        assert len(upstream.completions) == 3


def test_a_budget_of_nothing_serves_free_models_from_the_first_request(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    with (
        UpstreamThread() as upstream,
        serving(tmp_path, upstream, models=MODELS, aliases=ALIASES, limits=daily(0)) as gateway,
    ):
        assert gateway.chat(model="free-3b").status_code == 200
        assert gateway.chat().status_code == 429


def test_an_unpriced_model_is_never_served(tmp_path: Path, store: "redis.Redis[bytes]") -> None:
    with (
        UpstreamThread() as upstream,
        serving(tmp_path, upstream, models=MODELS, limits=daily(usd("1"))) as gateway,
    ):
        response = gateway.chat(model="beta-7b")
        assert (response.status_code, error_of(response.json())) == (503, "model_unavailable")
        assert upstream.requests == []
