"""A request's way, one function a step, straight down this page.

parse (server) -> identify -> read -> resolve -> estimate -> reserve -> route -> forward -> relay
-> account. Each step gathers, calls one rule, acts; a refusal at any of them ends in `_refuse`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from routing.contracts.capabilities import Capability
from routing.contracts.pricing import price_at
from routing.contracts.snapshot import Snapshot
from routing.decision.classes import FALLBACK
from routing.decision.estimate import estimate
from routing.decision.fallback import has_room
from routing.decision.filters import Need
from routing.decision.retry import RetryBudgets, budget_spent
from routing.decision.seam import Held
from routing.decision.select import Group, select
from routing.decision.types import Hold, Reason, Refusal
from routing.gateway.account import Accountant
from routing.gateway.affinity import affinity_of
from routing.gateway.ask import Ask
from routing.gateway.calibration import Calibration
from routing.gateway.config import GatewayConfig
from routing.gateway.credit_books import Work
from routing.gateway.credits import Credits
from routing.gateway.dialects.body import read_call
from routing.gateway.dialects.continuing import Sent, may_continue
from routing.gateway.dialects.operation import Operation
from routing.gateway.dialects.usage import Usage
from routing.gateway.ends import Ends
from routing.gateway.exchange import Client, Exchange, Step, new_request_id
from routing.gateway.fallback import asked_of, stands_of
from routing.gateway.fleet import Endpoint, Fleet
from routing.gateway.forward import forwarded
from routing.gateway.hooks.keeper import Hooks
from routing.gateway.hooks.steps import look_after, look_before
from routing.gateway.hooks.stream import watch_of
from routing.gateway.http1 import Request
from routing.gateway.identify import Callers
from routing.gateway.names import bad_name
from routing.gateway.once import HEADER, SPENT_REFUSAL, Kept, Recording, Vault
from routing.gateway.overrides import Overrides
from routing.gateway.record import hold_info, prefix_of, resends_of, skeleton
from routing.gateway.relay import Relay
from routing.gateway.repeat import answer_again, name_call
from routing.gateway.reserve import Reserver
from routing.gateway.resolve import resolve
from routing.gateway.returns import Caller
from routing.gateway.stats import Stats
from routing.gateway.tries import Tries
from routing.gateway.workflow import begin_task, out_of_time, task_of

if TYPE_CHECKING:
    from routing.gateway.spans import Spans

log = logging.getLogger(__name__)

_NOT_LOADED = Refusal(
    Reason.MODEL_UNAVAILABLE, "No replica has this adapter loaded now.", 1.0, param="model"
)
_NOBODY = Refusal(Reason.NO_CAPACITY, "No upstream can serve this model now.", 1.0)


@dataclass(slots=True)
class Walk:
    """The steps and what they need. `snapshot` is swapped between requests.

    `now_ms` is the store's time in Unix milliseconds. `live` are the requests that hold something.
    """

    config: GatewayConfig
    snapshot: Snapshot
    fleet: Fleet
    reserver: Reserver
    accountant: Accountant
    stats: Stats
    now_ms: Callable[[], int]
    credits: Credits
    overrides: Overrides = field(default_factory=Overrides)
    spans: "Spans | None" = None
    hooks: Hooks = field(kw_only=True)
    budgets: RetryBudgets = field(default_factory=RetryBudgets)
    live: set[Exchange] = field(default_factory=set)
    callers: Callers = field(init=False)
    calibration: Calibration = field(init=False)
    vault: Vault = field(init=False)
    ends: Ends = field(init=False)
    tries: Tries = field(init=False)
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    def __post_init__(self) -> None:
        """The memory of callers and the vault need the pepper."""
        self.callers = Callers(self.config.pepper)
        self.calibration = Calibration(self.config.gateway_id)
        self.vault = Vault(self.config.pepper)
        self.ends = Ends(
            self.accountant,
            self.stats,
            self.credits,
            self.budgets,
            self.calibration,
            self.vault,
            self.reserver.returns,
            self.live,
            self.now_ms,
        )
        self.tries = Tries(self.fleet, self.overrides, self.ends, self._route)

    # -- identify, read, resolve, estimate

    def begin(self, client: Client, request: Request, operation: Operation) -> Exchange | None:
        """Take a whole request on. The exchange while it runs, None if it is answered already."""
        now_ms = self.now_ms()
        request_id = new_request_id(now_ms)
        exchange = Exchange(client, request, self.snapshot, request_id, (time.monotonic(), now_ms))
        exchange.operation = operation
        caller = self.callers.identify(request.headers, exchange.snapshot, now_ms)
        if isinstance(caller, Refusal):
            self.stats.refused(caller.reason)
            self.ends.answer_refusal(exchange, caller)
            return None
        tenant, exchange.key = caller
        exchange.tenant = self.overrides.tenant(tenant, now_ms)
        if self.spans is not None:
            exchange.trace = self.spans.begin(request.headers)
        refusal = self._read(exchange) or self._resolve(exchange) or self._estimate(exchange)
        overridden = None
        if refusal is None:
            overridden = self.overrides.refusal(exchange)
            refusal = None if exchange.once else overridden
        if refusal is not None:
            self.ends.refuse(exchange, refusal)
            return None
        is_asked = exchange.snapshot.policy.hooks and overridden is None
        if is_asked and look_before(self, exchange, partial(self._reserve, exchange, None)):
            return exchange
        return self._reserve(exchange, overridden)

    def _read(self, exchange: Exchange) -> Refusal | None:
        call = read_call(exchange.request.body, exchange.operation)
        if isinstance(call, Refusal):
            return call
        exchange.call = call
        exchange.has_call = True
        exchange.request.body = b""  # the call has it
        most = exchange.snapshot.policy.max_choices
        if call.choices > most:
            return Refusal(Reason.INVALID_REQUEST, f"At most {most} choices are served.", param="n")
        header = exchange.request.headers.get(HEADER)
        if (wrong := bad_name(exchange.request.headers)) is not None or header is None:
            return wrong
        return name_call(self.vault, exchange, header, exchange.operation.path)

    def _resolve(self, exchange: Exchange) -> Refusal | None:
        call = exchange.call
        resolved = resolve(
            exchange.snapshot,
            (exchange.tenant, exchange.key),
            call.model,
            call.service_tier,
            exchange.request.headers,
        )
        if isinstance(resolved, Refusal):
            return resolved
        exchange.model, exchange.work_class, exchange.deadlines = resolved
        exchange.model_name = exchange.model.name
        exchange.class_name = exchange.work_class
        exchange.price = price_at(exchange.model.prices, exchange.arrived_ms)
        lacking = self.fleet.lacking(exchange.model_name, call.needs)
        return _cannot(call.model, *lacking) if lacking is not None else None

    def _estimate(self, exchange: Exchange) -> Refusal | None:
        model, policy = exchange.model, exchange.snapshot.policy
        cap = min(model.output_cap_tokens, policy.output_cap_tokens)
        if exchange.deadlines.output_cap_tokens is not None:
            cap = min(cap, exchange.deadlines.output_cap_tokens)
        found = estimate(
            exchange.call.ask,
            exchange.price,
            rates=self.calibration.rates(model.name, model.bytes_per_token),
            context_tokens=model.context_tokens,
            output_cap_tokens=self.overrides.output_cap(exchange, cap),
        )
        if isinstance(found, Refusal):
            return found
        exchange.estimate = found
        exchange.input_tokens = found.amounts.input_tokens
        if model.fallbacks:
            exchange.asked = asked_of(exchange)
            exchange.stands, exchange.estimate = stands_of(
                exchange, self.fleet, self.calibration.rates, self.overrides.stand_in_cap
            )
        return None

    def answered(self, exchange: Exchange, relay: Relay, body: bytes, usage: Usage | None) -> None:
        """A whole answer has come: hooks may look at it before its caller does."""
        if not exchange.snapshot.policy.hooks or not look_after(self, exchange, relay, body, usage):
            self.ends.answered(exchange, relay, body, usage)

    # -- reserve

    def _reserve(self, exchange: Exchange, overridden: Refusal | None) -> Exchange | None:
        """Hold it; a call that was answered before is answered again, even if `overridden`."""
        exchange.step = Step.RESERVING
        exchange.skeleton = skeleton(exchange, self.config.gateway_id)
        self.live.add(exchange)
        exchange.task = task_of(
            exchange.snapshot.policy,
            exchange.request.headers,
            exchange.tenant,
            exchange.model_name,
            exchange.call,
        )
        ask = Ask(
            exchange.request_id,
            exchange.tenant,
            exchange.key,
            exchange.model_name,
            exchange.work_class,
            exchange.estimate.amounts,
            exchange.price,
            exchange.snapshot.policy.outage,
            hold_info(exchange),
            once=exchange.once,
            body=exchange.call.body,
            unless_known=overridden,
            task=exchange.task,
        )
        if exchange.trace is not None:
            exchange.trace.reserving()
        self.reserver.reserve(ask, partial(self._reserved, exchange))
        return exchange if exchange.step is not Step.ENDED else None

    def _prepare_loss(self, exchange: Exchange) -> None:
        """Where the policy lets a lost stream go on, keep what the caller is sent of it."""
        is_on = exchange.snapshot.policy.failures.continue_lost
        if is_on and may_continue(exchange.call):
            amounts, choice = exchange.estimate.amounts, exchange.estimate.choice_output_tokens
            held = Held(amounts.input_tokens, amounts.output_tokens, choice)
            exchange.sent = Sent(held)

    def _reserved(self, exchange: Exchange, outcome: Hold | Kept | Refusal) -> None:
        if exchange.trace is not None:
            exchange.trace.reserved()
        if not isinstance(outcome, Hold):
            if isinstance(outcome, Kept):
                self._replay(exchange, outcome)
            else:
                self.ends.refuse(exchange, self.overrides.explained(exchange, outcome))
            return
        exchange.hold = outcome
        begin_task(exchange, outcome, self.now_ms())
        if exchange.once:
            exchange.recording = Recording(self.vault)
        if exchange.is_gone:
            self.ends.account_cancelled(exchange)
        else:
            self._prepare_loss(exchange)
            if exchange.snapshot.policy.hooks:
                exchange.watch = watch_of(self.hooks, exchange)
            self._route(exchange, _NOBODY)

    def _replay(self, exchange: Exchange, kept: Kept) -> None:
        """The same call was answered before: the same bytes, and no charge."""
        found = answer_again(self.vault, exchange, kept)
        if found is None:
            self.ends.refuse(exchange, SPENT_REFUSAL)
            return
        exchange.step = Step.ENDED
        self.live.discard(exchange)
        self.stats.replays += 1
        data, keep_alive = found
        self.ends.finish(exchange, data, keep_alive=keep_alive)
        if exchange.trace is not None:
            exchange.trace.ended(exchange)

    # -- route, forward

    def _route(self, exchange: Exchange, otherwise: Refusal, *, waits: int = 0) -> None:
        """Choose an endpoint and send; `otherwise` is the answer when there is none."""
        if exchange.step is Step.ENDED:
            return  # its caller left while it waited for credits
        amounts = exchange.estimate.amounts
        groups: Sequence[Group] = self.fleet.groups(exchange.model_name, exchange.call.needs)
        if exchange.carried_tokens:
            groups = self.fleet.own(groups)  # providers do not continue a text
        else:
            exchange.step = Step.SENDING
        work = _work_of(exchange) if self.credits.is_limited else None
        if work is not None:
            opened = self.credits.open_groups(groups, work, waits)
            if opened is None:
                self.credits.park(partial(self._route, exchange, otherwise, waits=waits + 1))
                return
            if isinstance(opened, Refusal):
                self.tries.without(exchange, opened if exchange.stand is None else otherwise)
                return
            groups = opened
        need = Need(
            exchange.request_id,
            amounts.input_tokens,
            amounts.kv_tokens,
            exchange.attempts,
            exchange.snapshot.policy.stale_after_s,
            exchange.tried,
            affinity_of(exchange, groups, self.fleet),
            exchange.snapshot.policy.slow_start_s,
        )
        choice = select(groups, need, time.monotonic())
        if choice is not None and exchange.stand is not None and not has_room(choice):
            choice = None
        endpoint = self.fleet.endpoints.get(choice.candidate.id) if choice is not None else None
        if endpoint is None:
            is_told = exchange.stand is not None or self.fleet.is_loaded(exchange.model_name)
            self.tries.without(exchange, otherwise if is_told else _NOT_LOADED)
            return
        if not self._may_spend_retry(exchange, endpoint):
            self.tries.unserved(exchange, budget_spent(otherwise))
            return
        if work is not None:
            exchange.credits = self.credits.take(endpoint.pool.id, work)
        self._forward(exchange, endpoint)

    def _may_spend_retry(self, exchange: Exchange, endpoint: Endpoint) -> bool:
        if not exchange.attempts:
            if resends_of(exchange):  # callers that send again leave less for us to do so
                self.budgets.take(endpoint.pool.id, exchange.tenant.id)
            return True
        may = self.budgets.take(endpoint.pool.id, exchange.tenant.id)
        self.stats.retries += may
        self.stats.retries_refused += not may
        return may

    def _forward(self, exchange: Exchange, endpoint: Endpoint) -> None:
        pool = endpoint.pool
        exchange.attempts += 1
        if exchange.stand is not exchange.sent_as and exchange.hold is not None:
            self.accountant.serves(exchange.hold, hold_info(exchange))
        exchange.sent_as = exchange.stand
        exchange.tried += (endpoint.candidate.id,)
        exchange.pool, exchange.replica = pool.id, endpoint.candidate.id
        exchange.region = pool.region
        endpoint.residency.sent(prefix_of(exchange))
        served = self.fleet.served_name(exchange.model_name, pool)
        head, body = forwarded(exchange, endpoint, served)
        relay = Relay(self, exchange, endpoint)
        exchange.attempt = relay
        relay.start(head, body)

    # -- the end of all

    def cut_all(self) -> None:
        """The drain limit has passed: end what is still running, with a typed error."""
        refusal = Refusal(Reason.SHUTTING_DOWN, "The gateway is shutting down; send it again.", 1.0)
        for exchange in list(self.live):
            relay = exchange.attempt
            if not isinstance(relay, Relay):
                if exchange.step in (Step.SENDING, Step.RELAYING):
                    self.tries.unserved(exchange, refusal)  # between two tries
                continue
            relay.cancel()
            if exchange.step is Step.RELAYING:
                self.ends.stream_cut(exchange, relay, refusal)
            else:
                exchange.was_lost = exchange.was_lost or relay.is_sent
                self.ends.give_up(exchange, refusal)

    # -- background

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Run a short task; the walk keeps it alive."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def check_deadlines(self, now_s: float) -> None:
        """Look at every running try's deadlines; called ten times a second."""
        for exchange in list(self.live):
            if exchange.attempt is not None:
                exchange.attempt.check(now_s)
            elif exchange.task_ends_s <= now_s and exchange.step in (Step.SENDING, Step.RELAYING):
                # Between two tries.
                self.tries.unserved(exchange, out_of_time(exchange, exchange.carried_tokens))


def _cannot(model: str, need: Capability, param: str) -> Refusal:
    text = f"No upstream of the model {model!r} can do {need.value}, which {param!r} asks for."
    return Refusal(Reason.UNSUPPORTED_CAPABILITY, text, param=param)


def _work_of(exchange: Exchange) -> Work:
    tenant = exchange.tenant
    caller = Caller(tenant.id, tenant.timezone, exchange.key.id, exchange.call.body)
    share = FALLBACK if exchange.stand is not None else ""
    return Work(caller, exchange.work_class, exchange.estimate.amounts, exchange.credits, share)
