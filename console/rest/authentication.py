"""Who calls: a bearer token, or the session of a signed-in person (with CSRF, by the framework)."""

import re
from datetime import timedelta

from django.conf import settings
from django.db.models import Q
from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from console.models import ApiToken, User
from routing.contracts.digest import keyed_digest

USE_NOTED_EVERY = timedelta(minutes=1)  # `last_used_at` is written no more often than this
_BEARER = re.compile(rb"[Bb]earer +([\x21-\x7e]{1,200})")


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer hrt_...`. The token acts as its user while neither has ended."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        """The token's user, or `None` when no `Authorization` header is sent.

        Raises `AuthenticationFailed` for anything else than a live token of an active user.
        """
        header = get_authorization_header(request)
        if not header:
            return None
        found = _BEARER.fullmatch(header)
        if found is None:
            raise AuthenticationFailed("Send the header as 'Authorization: Bearer <token>'.")
        digest = keyed_digest(settings.KEY_PEPPER.encode(), found[1])
        now = timezone.now()
        token = (
            ApiToken.objects.select_related("user")
            .filter(Q(expires_at=None) | Q(expires_at__gt=now))
            .filter(digest=digest, revoked_at=None, user__is_active=True)
            .first()
        )
        if token is None:
            raise AuthenticationFailed("This token is unknown, expired or revoked.")
        if token.last_used_at is None or token.last_used_at < now - USE_NOTED_EVERY:
            ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        """Challenge of a 401."""
        return 'Bearer realm="headrace"'


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """How the OpenAPI document names the token."""

    target_class = TokenAuthentication
    name = "bearer"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        """An HTTP bearer scheme."""
        return {"type": "http", "scheme": "bearer"}
