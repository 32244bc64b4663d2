"""Whatever is asked of a replica, blocks and tokens add up."""

from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.simulation.engine import Replica
from capacity.simulation.kv import chain_hashes
from capacity.simulation.profiles import EngineProfile, StepTimes
from capacity.simulation.requests import EngineRequest, Generation

BLOCK = 4
profiles = st.builds(
    EngineProfile,
    name=st.just("any"),
    times=st.just(StepTimes(0.01, 1e-4, 1e-6, 1e-8)),
    kv_blocks=st.integers(6, 40),
    block_tokens=st.just(BLOCK),
    token_budget=st.integers(1, 40),
    seats=st.integers(1, 5),
    long_prefill_tokens=st.sampled_from([0, 3]),
    watermark_blocks=st.integers(0, 2),
)
asks = st.tuples(
    st.integers(1, 30),  # prompt
    st.integers(1, 30),  # output
    st.integers(-2, 2),  # priority
    st.integers(0, 2),  # which text
    st.integers(0, 6),  # steps before it
    st.booleans(),  # aborted later
)


def prompt_hashes(text: int, tokens: int) -> tuple[int, ...]:
    return chain_hashes([bytes((text, n)) for n in range(tokens)], BLOCK)


def check(replica: Replica, generations: list[Generation]) -> None:
    capacity = replica.blocks.capacity
    assert 0 <= replica.blocks.used_count <= capacity
    assert 0 <= replica.running_count <= replica.profile.seats
    held = [block for one in generations for block in one.blocks]
    assert (
        len(set(held)) + sum(one.spare_blocks for one in generations) == replica.blocks.used_count
    )
    for one in generations:
        assert one.computed_tokens <= (len(one.blocks) + one.spare_blocks) * BLOCK
        assert one.cached_tokens % BLOCK == 0
        assert one.cached_tokens < one.request.prompt_tokens
        assert one.made_tokens <= one.request.output_tokens


@settings(max_examples=150, deadline=None)
@given(profile=profiles, plan=st.lists(asks, max_size=12), by_priority=st.booleans())
def test_blocks_and_tokens_add_up(profile: EngineProfile, plan: list, by_priority: bool) -> None:
    replica = Replica(profile, by_priority=by_priority)
    generations: list[Generation] = []
    now_s = 0.0
    emitted = prefilled = 0

    def advance() -> bool:
        nonlocal now_s, emitted, prefilled
        result = replica.step(now_s)
        if result is None:
            return False
        assert result.prefill_tokens + result.decodes <= profile.token_budget
        assert result.duration_s > 0
        now_s = result.end_s
        emitted += len(result.emitted)
        prefilled += result.prefill_tokens
        check(replica, generations)
        return True

    for number, (prompt, output, priority, text, steps, is_aborted) in enumerate(plan):
        for _ in range(steps):
            advance()
        if not replica.fits(prompt, output):
            continue
        request = EngineRequest(
            str(number),
            prompt,
            output,
            priority=priority,
            block_hashes=prompt_hashes(text, prompt + output),
        )
        generations.append(replica.submit(request, now_s))
        if is_aborted and number:
            replica.abort(str(number // 2))
            check(replica, generations)
    for _ in range(20_000):
        if not advance():
            break
    assert (replica.running_count, replica.waiting_count) == (0, 0)
    assert replica.blocks.used_count == 0
    assert replica.waiting_tokens == 0
    assert emitted == sum(one.made_tokens for one in generations)
    check_totals(replica, generations, prefilled)


def test_a_request_that_preempts_itself_does_not_stop_the_others() -> None:
    """Found by the property above: the first in line is the least important and out of blocks."""
    profile = EngineProfile("tight", StepTimes(0.01, 1e-4, 1e-6, 1e-8), 8, BLOCK, 2, seats=2)
    replica = Replica(profile, by_priority=True)
    replica.submit(EngineRequest("tiny", 1, 1, priority=0), 0.0)
    long = replica.submit(EngineRequest("long", 19, 7, priority=1), 0.0)
    first = replica.step(0.0)
    assert first is not None
    short = replica.submit(EngineRequest("short", 1, 6, priority=0), first.end_s)
    now_s = first.end_s
    while (result := replica.step(now_s)) is not None:
        now_s = result.end_s
    assert (long.made_tokens, short.made_tokens) == (7, 6)
    assert replica.counters.preemptions >= 1


def check_totals(replica: Replica, generations: list[Generation], prefilled: int) -> None:
    for one in generations:
        if one.finish != "abort":
            assert one.made_tokens == one.request.output_tokens
    served = [one for one in generations if one.made_tokens]
    computed = sum(one.request.prompt_tokens - one.cached_tokens for one in served)
    assert replica.counters.preemptions or prefilled >= computed


@given(prompts=st.lists(st.integers(1, 20), min_size=1, max_size=8))
def test_without_pressure_order_of_first_tokens_is_order_of_arrival(prompts: list[int]) -> None:
    profile = EngineProfile("roomy", StepTimes(0.01, 0, 0, 0), 1000, BLOCK, 7, 3)
    replica = Replica(profile)
    for number, prompt in enumerate(prompts):
        replica.submit(EngineRequest(str(number), prompt, 1), 0.0)
    order = []
    now_s = 0.0
    while (result := replica.step(now_s)) is not None:
        now_s = result.end_s
        order += [int(one.request.id) for one in result.emitted]
    assert order == sorted(order)
