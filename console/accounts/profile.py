"""One's own profile: what one may do, the password, and API tokens."""

from datetime import datetime

from django import forms
from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.debug import sensitive_post_parameters

from console.accounts.person import acting, signed_in
from console.accounts.selectors import TokenView, person, token_of, tokens_of
from console.accounts.services import change_password, issue_token, revoke_token
from console.errors import DomainError
from console.web.forms import ServiceForm, TypedConfirmation
from console.web.htmx import render, render_form
from console.web.tables import Column
from console.web.views import page

TYPED_CHARS = 4
MAX_PASSWORD_CHARS = 256
TOKEN_COLUMNS = (
    Column("Token"),
    Column("Name"),
    Column("State"),
    Column("Issued"),
    Column("Last used", meaning="Noted at most once a minute"),
    Column("Ends"),
    Column("", meaning="Acts"),
)


class PasswordForm(ServiceForm):
    """The present password, and the next one twice."""

    current = forms.CharField(
        label="Present password",
        max_length=MAX_PASSWORD_CHARS,
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password"}),
    )
    password = forms.CharField(
        label="New password",
        max_length=MAX_PASSWORD_CHARS,
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text="At least 12 characters.",
    )
    again = forms.CharField(
        label="New password again",
        max_length=MAX_PASSWORD_CHARS,
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )

    def clean_again(self) -> str:
        """The repetition; refused when it differs."""
        again = str(self.cleaned_data["again"])
        if again != self.cleaned_data.get("password", again):
            raise forms.ValidationError("This differs from the new password.")
        return again


class TokenForm(ServiceForm):
    """A new token."""

    name = forms.CharField(max_length=80, help_text="What uses it.")
    expires_at = forms.DateTimeField(
        label="Ends",
        required=False,
        help_text="UTC, within a year; empty: never.",
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}),
    )


@page("GET")
def me(request: HttpRequest) -> HttpResponseBase:
    """Who one is here, and one's tokens, newest first."""
    user_id = signed_in(request).pk
    now = timezone.now()
    context = {
        "person": person(user_id),
        "columns": TOKEN_COLUMNS,
        "rows": [{"token": token, "state": _state_of(token, now)} for token in tokens_of(user_id)],
    }
    return render(request, "console/me.html", "", context)


@sensitive_post_parameters()
@page("GET", "POST")
def password(request: HttpRequest) -> HttpResponseBase:
    """Change one's own password; this session stays, others end."""
    user = signed_in(request)
    form = PasswordForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            change_password(
                user_id=user.pk,
                current=form.cleaned_data["current"],
                password=form.cleaned_data["password"],
                actor=acting(request),
            )
        except DomainError as error:
            form.add_refusal(error)
        else:
            user.refresh_from_db()
            update_session_auth_hash(request, user)
            messages.success(request, "Your password is changed.", "ok")
            return redirect("me")
    return render_form(request, "console/change_password.html", {"form": form})


@page("GET", "POST")
def issue(request: HttpRequest) -> HttpResponseBase:
    """Issue a token that acts as oneself; the answer holds its secret, once."""
    form = TokenForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            issued = issue_token(
                user_id=signed_in(request).pk, actor=acting(request), **form.cleaned_data
            )
        except DomainError as error:
            form.add_refusal(error)
        else:
            context = {
                "issued": issued,
                "name": form.cleaned_data["name"],
                "base_url": f"{request.scheme}://{request.get_host()}",
            }
            return render(request, "console/token_secret.html", "", context)
    return render_form(request, "console/issue_token.html", {"form": form})


@page("GET", "POST")
def revoke(request: HttpRequest, token_id: int) -> HttpResponseBase:
    """End one of one's own tokens; asks to type the last characters of its prefix."""
    user_id = signed_in(request).pk
    token = token_of(user_id, token_id)
    last = token.prefix[-TYPED_CHARS:]
    form = TypedConfirmation(request.POST or None, expected=last, label=f"Type {last} to confirm")
    if request.method == "POST" and form.is_valid():
        revoke_token(user_id=user_id, token_id=token_id, actor=acting(request))
        messages.success(request, f"Token {token.prefix} is revoked.", "ok")
        return redirect("me")
    context = {"form": form, "token": token}
    return render_form(request, "console/revoke_token.html", context)


def _state_of(token: TokenView, now: datetime) -> str:
    if token.revoked_at is not None:
        return "revoked"
    if token.expires_at is not None and token.expires_at <= now:
        return "expired"
    return "live"
