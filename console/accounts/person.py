"""Who is behind a request, as services and the audit trail need to know it."""

from django.http import HttpRequest

from console.accounts.selectors import actor_of
from console.audit.rules import Actor
from console.errors import Forbidden
from console.models import User


def signed_in(request: HttpRequest) -> User:
    """The signed-in person; raises `Forbidden` without a session."""
    if not isinstance(request.user, User):
        raise Forbidden("Sign in first.")
    return request.user


def acting(request: HttpRequest) -> Actor:
    """The signed-in person as actor; raises `Forbidden` without a session."""
    return actor_of(signed_in(request))
