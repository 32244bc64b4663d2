"""Sign-in throttle: few failures per name and address, counted in the store, gone by themselves.

An attempt is counted before its password is checked, so parallel guesses cannot pass the bound.
While the store is away sign-in stays possible: an operator needs the console most during an outage,
and each guess still costs an Argon2 hash.
"""

import logging
from typing import cast

from django.conf import settings
from redis.exceptions import RedisError

from console.web.store import store
from routing.contracts.digest import keyed_digest
from routing.store import keys

logger = logging.getLogger(__name__)

MAX_FAILURES = 10
WINDOW_S = 300


def begin_attempt(username: str, address: str) -> bool:
    """Count an attempt; False means that it must be refused unchecked."""
    key = _key(username, address)
    try:
        with store().pipeline(transaction=True) as pipe:
            pipe.set(key, 0, ex=WINDOW_S, nx=True)  # the window starts with the first attempt
            pipe.incr(key)
            attempts = cast("int", pipe.execute()[1])
    except RedisError as error:
        logger.warning("sign-in not throttled, the store is away: %s", error)
        return True
    return attempts <= MAX_FAILURES


def forget_failures(username: str, address: str) -> None:
    """Called after a success: only failures count."""
    try:
        store().delete(_key(username, address))
    except RedisError as error:
        logger.warning("sign-in count not reset, the store is away: %s", error)


def _key(username: str, address: str) -> str:
    subject = f"{username.strip().casefold()}\n{address}"
    return keys.sign_in_failures(keyed_digest(settings.KEY_PEPPER.encode(), subject.encode()))
