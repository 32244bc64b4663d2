"""Each trace form is read as its own notes say."""

import pytest

from capacity.simulation import traces
from routing.contracts.usage import ShapeRow


def test_azure_starts_at_its_first_row() -> None:
    lines = [
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:50.9951690,396,109",
    ]
    rows = list(traces.azure(lines))
    assert [(row.input_tokens, row.output_tokens) for row in rows] == [(374, 44), (396, 109)]
    assert rows[0].at_s == 0.0
    assert rows[1].at_s == pytest.approx(4.314579, abs=1e-6)


def test_burstgpt_leaves_out_calls_without_an_answer() -> None:
    lines = [
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
        "5,ChatGPT,472,18,490,Conversation log",
        "45,GPT-4,1087,0,1087,Conversation log",
        "118,GPT-4,417,276,693,Conversation log",
    ]
    rows = list(traces.burstgpt(lines))
    assert [(row.at_s, row.tenant) for row in rows] == [(0.0, "ChatGPT"), (113.0, "GPT-4")]


def test_mooncake_shares_exactly_the_blocks_that_the_trace_shares() -> None:
    lines = [
        '{"timestamp": 0, "input_length": 1200, "output_length": 5, "hash_ids": [0, 1, 2]}',
        '{"timestamp": 3000, "input_length": 1536, "output_length": 7, "hash_ids": [0, 1, 9]}',
    ]
    first, second = traces.mooncake(lines, 16)
    assert second.at_s == 3.0
    assert (len(first.hashes), len(second.hashes)) == (75, 96)  # whole blocks of 16 only
    shared = [a == b for a, b in zip(first.hashes, second.hashes, strict=False)]
    assert shared == [True] * 64 + [False] * 11
    assert len(set(second.hashes)) == 96


def test_arena_rows_keep_their_tenants() -> None:
    lines = ["t_s,tenant,input_tokens,output_tokens", "0,13,13,199", "0.2,2,36,137"]
    assert [(row.tenant, row.at_s) for row in traces.arena(lines)] == [("13", 0.0), ("2", 0.2)]


def test_own_shapes_become_calls_again() -> None:
    rows = [
        ShapeRow("r1", "t", "m", "batch", 5_000, "ok", 6_000, None, None, 300, 200, 0, 50),
        ShapeRow("r2", "u", "m", "standard", 6_500, "refused:rate_limited", 6_500, max_tokens=80),
    ]
    first, second = traces.shapes(rows, 16)
    assert (first.at_s, first.input_tokens, first.output_tokens) == (0.0, 200, 50)
    assert (first.max_tokens, first.work_class.value, first.tenant) == (300, "batch", "t")
    assert (second.at_s, second.output_tokens) == (1.5, 80)


def test_servegen_keeps_the_rate_of_each_client_and_bin() -> None:
    rates = [
        "client,t_s,rate_rps,cv,pattern,p1,p2",
        "1,0,2.0,0.92,Gamma,1.17,0.4",
        "2,0,5.0,1.1,Weibull,0.9,0.2",
        "1,600,0.5,0.92,Gamma,1.17,1.7",
        "3,0,9.0,1,Gamma,1,1",
    ]
    names = ("mean", "p50", "max")
    head = ",".join(f"{kind}_tokens_{name}" for kind in ("input", "output") for name in names)
    lengths = [f"client,window_s,{head}", "1,0,260,140,1000,500,400,3000", "2,0,9,9,9,5,5,5"]
    rows = list(traces.servegen(rates, lengths, seed=3, until_s=1200.0))
    assert [row.at_s for row in rows] == sorted(row.at_s for row in rows)
    early = [row for row in rows if row.at_s < 600.0]
    by_client = {name: sum(row.tenant == name for row in early) for name in ("1", "2", "3")}
    assert by_client["1"] == pytest.approx(1200, rel=0.1)
    assert by_client["2"] == pytest.approx(3000, rel=0.1)
    assert by_client["3"] == 0  # it has no lengths
    assert len(rows) - len(early) == pytest.approx(300, rel=0.2)
    assert {row.input_tokens for row in rows if row.tenant == "2"} == {9}


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        (["TIMESTAMP,ContextTokens", "2023-11-16 18:15:46,1"], "GeneratedTokens"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46,x,1"], "ContextTokens"),
    ],
)
def test_a_row_that_is_not_of_its_form_names_the_field(lines: list[str], word: str) -> None:
    with pytest.raises(traces.TraceError, match=word):
        list(traces.azure(lines))
