"""What may be sent again, and how often: the retry budget of a (pool, tenant)."""

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from enum import StrEnum

from routing.decision.draw import draw
from routing.decision.types import Reason, Refusal

MAX_BUDGETS = 50_000  # pairs remembered; the least recently used restarts full, 100 B each


@dataclass(slots=True)
class RetryBudgets:
    """Token buckets by (pool, tenant): a retry costs 1, a success gives back a little.

    `burst` tokens at first and at most. With budget share b, retries never exceed b x successes
    plus the burst, so a failing pool cannot multiply its own load.
    """

    per_success: float = 0.1
    burst: float = 10.0
    _tokens: OrderedDict[tuple[str, str], float] = field(default_factory=OrderedDict)

    def left(self, pool: str, tenant: str) -> float:
        """Tokens that the pair has."""
        return self._tokens.get((pool, tenant), self.burst)

    def take(self, pool: str, tenant: str) -> bool:
        """Spend one token; False when none is left."""
        left = self.left(pool, tenant)
        if left < 1:
            return False
        self._put((pool, tenant), left - 1)
        return True

    def succeeded(self, pool: str, tenant: str) -> None:
        """Give back the share of one success. A pair that is full is not stored."""
        left = self._tokens.get((pool, tenant))
        if left is None:
            return
        if left + self.per_success >= self.burst:
            del self._tokens[pool, tenant]
        else:
            self._put((pool, tenant), left + self.per_success)

    def _put(self, pair: tuple[str, str], tokens: float) -> None:
        self._tokens[pair] = tokens
        self._tokens.move_to_end(pair)
        if len(self._tokens) > MAX_BUDGETS:
            self._tokens.popitem(last=False)


RETRY_BUDGET = "retry_budget"  # as the limit that a caller is told of
SPENT_PAUSE_S = 1.0  # by then breakers keep away what fails, and successes have earned new retries


def budget_spent(refusal: Refusal) -> Refusal:
    """What a caller is told whose try failed while the retry budget was spent.

    The code stays that of the failure. When so many fail at once, callers that all come back at
    once are the storm that the budget is there to prevent: they are told to wait.
    """
    text = "Not tried elsewhere: the retry budget is spent. Send it again after a pause."
    return replace(
        refusal,
        message=f"{refusal.message} {text}",
        retry_after_s=max(refusal.retry_after_s or 0.0, SPENT_PAUSE_S),
        limit=RETRY_BUDGET,
    )


class Kind(StrEnum):
    """What an upstream's failure means for sending the request again."""

    REFUSED = "refused"  # it took nothing on: another may always be tried
    LOST = "lost"  # it took the request and gave nothing: only under the policy's switch
    OVER = "over"  # it took the request, whose own time is up: nobody may try again
    CALLER = "caller"  # the request itself is at fault: nobody else would take it


@dataclass(frozen=True, slots=True)
class Verdict:
    """A failure before any output: what to tell the caller, and whether to try elsewhere.

    `pause_s` is how long the endpoint is left alone: as long as it asked for, or as its state
    needs; `counts` whether the breaker counts it as the endpoint's failure.
    """

    kind: Kind
    refusal: Refusal
    pause_s: float = 0.0
    counts: bool = True


# A vLLM that drains answers 500 "cannot schedule new futures after shutdown" while /health still
# says 200. It will not serve again: an engine takes longer than this to load, and by then its
# state is known from elsewhere.
_SHUT_DOWN = "after shutdown"
LEAVING_PAUSE_S = 30.0
# How a full vLLM words its 503 (requests, or tokens to prefill). Full is not broken: were it to
# open the breaker, a whole pool under load would be ejected. Short: a place frees with any end.
_FULL = ("currently busy", "backlog limit")
FULL_PAUSE_S = 0.2
UNSTATED_PAUSE_S = 1.0  # after a refusal that names no time
# Where nothing listens, nothing is in progress either: by its load it would be the best of all, and
# draw every call until its breaker opens, or for as long as the ejection limit overrules that.
UNREACHED_PAUSE_S = 0.2
_BUSY_STATUS = (503, 529)
_DENIED_STATUS = (401, 403, 407)
_CALLER_STATUS = (400, 409, 413, 422)


def judge(status: int, message: str, retry_after_s: float | None, *, is_draining: bool) -> Verdict:
    """Verdict on an HTTP status (or the code inside an error event) that came before output."""
    if status == 429:
        text = "The upstream limits the rate of requests."
        wait_s = retry_after_s or UNSTATED_PAUSE_S
        refusal = Refusal(Reason.UPSTREAM_RATE_LIMITED, text, wait_s)
        return Verdict(Kind.REFUSED, refusal, wait_s, counts=False)
    if status in _BUSY_STATUS:
        text = "Every upstream asked is at capacity; send it again after a pause."
        refusal = Refusal(Reason.NO_CAPACITY, text, retry_after_s or UNSTATED_PAUSE_S)
        is_full = any(words in message for words in _FULL)
        pause_s = retry_after_s or (FULL_PAUSE_S if is_full else 0.0)
        return Verdict(Kind.REFUSED, refusal, pause_s, counts=not is_full)
    if _SHUT_DOWN in message:
        text = "The upstream is shutting down; send it again after a pause."
        refusal = Refusal(Reason.NO_CAPACITY, text, 1.0)
        return Verdict(Kind.REFUSED, refusal, LEAVING_PAUSE_S, counts=False)
    if status == 404:
        text = "The model is not loaded on any upstream."
        refusal = Refusal(Reason.MODEL_UNAVAILABLE, text, UNSTATED_PAUSE_S)
        return Verdict(Kind.REFUSED, refusal, counts=False)
    if status in _CALLER_STATUS:
        reason = Reason.REQUEST_TOO_LARGE if status == 413 else Reason.INVALID_REQUEST
        return Verdict(
            Kind.CALLER, Refusal(reason, message or "The upstream refused it."), counts=False
        )
    refusal = Refusal(Reason.UPSTREAM_ERROR, "The upstream failed.")
    took_nothing = is_draining or status in _DENIED_STATUS or status < 400
    return Verdict(Kind.REFUSED if took_nothing else Kind.LOST, refusal)


def judge_unreached() -> Verdict:
    """Verdict on an upstream that could not be connected to: it took nothing on."""
    refusal = Refusal(Reason.UPSTREAM_ERROR, "The upstream cannot be reached.")
    return Verdict(Kind.REFUSED, refusal, UNREACHED_PAUSE_S)


def judge_event(code: int | None, message: str, *, is_draining: bool) -> Verdict:
    """Verdict on an error that came as the first event of a 200 stream: always a refusal."""
    verdict = judge(code or 500, message, None, is_draining=is_draining)
    if verdict.kind is Kind.CALLER:
        return verdict
    return replace(verdict, kind=Kind.REFUSED)


def judge_cut_off(*, has_output: bool) -> Verdict:
    """Verdict on an answer that the engine ended by itself before its end, nothing of it sent on.

    Without any output it took nothing on: vLLM answers so to what comes while it shuts down.
    """
    refusal = Refusal(Reason.UPSTREAM_ERROR, "The upstream stopped before the end of the answer.")
    return Verdict(Kind.LOST if has_output else Kind.REFUSED, refusal, LEAVING_PAUSE_S)


def may_resend(verdict: Verdict, *, attempts: int, max_attempts: int, resend_lost: bool) -> bool:
    """Whether the policy lets this failure be tried elsewhere (the budget is asked separately)."""
    if attempts >= max_attempts:
        return False
    return verdict.kind is Kind.REFUSED or (verdict.kind is Kind.LOST and resend_lost)


def backoff_s(
    request_id: str,
    attempts: int,
    *,
    base_s: float,
    max_s: float,
    hint_s: float = 0.0,
    left_s: float,
) -> float | None:
    """Seconds before the next try; None when the request's own time, `left_s`, ends before it.

    Full jitter over `base_s`, doubled with each of the `attempts` so far, up to `max_s`: callers
    that failed together do not come back together. What the upstream itself asked for (`hint_s`,
    0: nothing) is waited instead, within `max_s`.
    """
    ceiling_s = min(max_s, base_s * 2.0 ** (attempts - 1))
    wait_s = min(hint_s, max_s) if hint_s else draw(request_id, attempts, "backoff") * ceiling_s
    return wait_s if wait_s < left_s else None
