"""Agents report outcomes with the API key that they call models with."""

import re
from dataclasses import dataclass

from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from tenants.keys.rules import looks_like_key
from tenants.keys.selectors import live_key

_BEARER = re.compile(rb"[Bb]earer +([\x21-\x7e]{1,200})")


@dataclass(frozen=True, slots=True)
class KeyCaller:
    """Who calls with an API key: its tenant, and nobody else's."""

    tenant_id: int
    prefix: str
    is_authenticated: bool = True
    is_active: bool = True


class KeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer hr_...`, or `x-api-key`, as gateways take them."""

    def authenticate(self, request: Request) -> tuple[KeyCaller, None] | None:
        """The key's tenant; None for what has not the form of an API key.

        Raises `AuthenticationFailed` for a key that no gateway would take.
        """
        found = _BEARER.fullmatch(get_authorization_header(request))
        secret = found[1].decode() if found else request.headers.get("x-api-key", "")
        if not looks_like_key(secret):
            return None
        key = live_key(secret, timezone.now())
        if key is None:
            raise AuthenticationFailed("This API key is unknown, expired or revoked.")
        return KeyCaller(key.tenant_id, key.prefix), None

    def authenticate_header(self, request: Request) -> str:
        """Challenge of a 401."""
        return 'Bearer realm="headrace"'


class KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """How the OpenAPI document names an API key."""

    target_class = KeyAuthentication
    name = "api_key"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        """An HTTP bearer scheme."""
        return {"type": "http", "scheme": "bearer"}
