"""Sign-in and sign-out."""

from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, LogoutView
from django.http import HttpRequest
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache

from console.accounts.throttle import WINDOW_S, begin_attempt, forget_failures
from console.web import units


class SignInForm(AuthenticationForm):
    """Django's form; one answer for a wrong name, a wrong password and a closed account."""

    error_messages = {
        "invalid_login": "That name and password do not belong together.",
        "inactive": "That name and password do not belong together.",
    }

    def clean(self) -> dict[str, object]:
        """Check the password, unless this name has failed too often from this address."""
        username = str(self.cleaned_data.get("username") or "")
        address = _address(self.request)
        if username and self.cleaned_data.get("password"):
            if not begin_attempt(username, address):
                self.add_error(
                    None, f"Too many failed attempts. Try again in {units.seconds(WINDOW_S)}."
                )
                return self.cleaned_data
            super().clean()
            forget_failures(username, address)
        return self.cleaned_data


@method_decorator(never_cache, name="dispatch")
class SignIn(LoginView):
    """The sign-in page; goes on to `next` on our own host."""

    template_name = "console/sign_in.html"
    authentication_form = SignInForm
    redirect_authenticated_user = True


class SignOut(LogoutView):
    """Ends the session (POST only) and returns to sign-in."""

    next_page = "sign_in"


def _address(request: HttpRequest | None) -> str:
    return request.META.get("REMOTE_ADDR", "") if request else ""
