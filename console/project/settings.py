"""Django settings, read once from the environment; unsafe combinations are refused at start.

The supervisor writes `<state>/environment.json` and `manage.py` loads it, so that every command
sees the same values. Nothing here has a secret default outside tests.
"""

import os
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from console.project.database import databases_from_url
from routing.contracts.capacity import LIMITED
from routing.contracts.enums import Dimension
from routing.store.address import cluster_of

BASE_DIR = Path(__file__).resolve().parent.parent.parent


def _required(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise ImproperlyConfigured(
            f"{name} is not set: start with `python3 manage.py up`, or set it"
        )
    return value


STATE_DIR = Path(os.environ.get("HEADRACE_STATE", BASE_DIR / ".headrace"))
SECRET_KEY = _required("HEADRACE_SECRET_KEY")
KEY_PEPPER = _required("HEADRACE_KEY_PEPPER")  # keys every digest of API keys and tokens
REDIS_URL = _required("REDIS_URL")
DEBUG = False

ALLOWED_HOSTS = os.environ.get("HEADRACE_HOSTS", "localhost,127.0.0.1,[::1]").split(",")
if "*" in ALLOWED_HOSTS:
    raise ImproperlyConfigured(
        "HEADRACE_HOSTS may not be '*': name the hosts that the console answers for"
    )
CSRF_TRUSTED_ORIGINS = [o for o in os.environ.get("HEADRACE_ORIGINS", "").split(",") if o]
IS_HTTPS = os.environ.get("HEADRACE_HTTPS", "") == "1"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = IS_HTTPS
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_NAME = "headrace_session"
CSRF_COOKIE_NAME = "headrace_csrf"
CSRF_FAILURE_VIEW = "console.web.views.csrf_failure"
SESSION_COOKIE_AGE = 12 * 3600
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
DATA_UPLOAD_MAX_MEMORY_SIZE = 2 * 1024 * 1024

USAGE_DAYS_KEPT = int(os.environ.get("HEADRACE_USAGE_DAYS_KEPT", "400"))
if not 36 <= USAGE_DAYS_KEPT <= 3660:
    raise ImproperlyConfigured(
        "HEADRACE_USAGE_DAYS_KEPT lies between 36 (longer than any budget window) and 3660 days"
    )

# Upstreams: an authority of their certificates beside the system's, and hosts of providers that
# may have addresses inside.
PROVIDER_CA_FILE = os.environ.get("HEADRACE_PROVIDER_CA_FILE", "")
PRIVATE_PROVIDERS = frozenset(os.environ.get("HEADRACE_PRIVATE_PROVIDERS", "").split())
PRIVATE_HOOKS = frozenset(os.environ.get("HEADRACE_PRIVATE_HOOKS", "").split())

PROMETHEUS_URL = os.environ.get("PROMETHEUS_URL", "")  # longer history; empty: our own only

MAIL_URL = os.environ.get("HEADRACE_MAIL_URL", "")  # smtp[s]://user:password@host:port; or a file
MAIL_FROM = os.environ.get("HEADRACE_MAIL_FROM", "headrace@localhost")
if MAIL_URL and not MAIL_URL.startswith(("smtp://", "smtps://")):
    raise ImproperlyConfigured(
        "HEADRACE_MAIL_URL is smtp://... or smtps://...; empty writes mails to the state directory"
    )

GATEWAY_URL = os.environ.get("HEADRACE_GATEWAY_URL", "http://127.0.0.1:8100")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.postgres",
    "django.contrib.staticfiles",
    "django_celery_beat",
    "rest_framework",
    "drf_spectacular",
    "channels",
    "console",
    "tenants",
    "routing",
    "capacity",
    "telemetry",
]

MIDDLEWARE = [
    "console.web.csp.RequestId",
    "console.web.csp.SecurityHeaders",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "console.web.unstorable.RefuseNul",
    "console.web.unavailable.Unavailable",
]

ROOT_URLCONF = "console.project.urls"
ASGI_APPLICATION = "console.project.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "console.pages.navigation.navigation",
            ],
            "builtins": ["console.web.tags", "django.templatetags.static"],
        },
    },
]

DATABASES = databases_from_url(_required("DATABASE_URL"))
AUTH_USER_MODEL = "console.User"
AUTH_PASSWORD_VALIDATORS = [
    {
        "NAME": "django.contrib.auth.password_validation.MinimumLengthValidator",
        "OPTIONS": {"min_length": 12},
    },
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.Argon2PasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
LOGIN_URL = "/sign-in/"
LOGIN_REDIRECT_URL = "/"

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False

STATIC_URL = "static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
WHITENOISE_USE_FINDERS = (
    True  # the embedded default serves from the tree: no collect step to forget
)
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REST_FRAMEWORK = {
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "console.rest.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "EXCEPTION_HANDLER": "console.rest.errors.problem",
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Headrace API",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    # Two closed sets are called `dimension`: what tenants and what pools are limited in.
    "ENUM_NAME_OVERRIDES": {
        "DimensionEnum": [item.value for item in Dimension],
        "CapacityDimensionEnum": [item.value for item in LIMITED],
    },
}

# Celery speaks to one server only: with a cluster as the store it needs one of its own.
CELERY_BROKER_URL = os.environ.get("CELERY_BROKER_URL", "") or REDIS_URL
if cluster_of(CELERY_BROKER_URL) is not None:
    raise ImproperlyConfigured(
        "REDIS_URL names a cluster, which Celery cannot use: set CELERY_BROKER_URL to one server"
    )
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 3600,
    "global_keyprefix": "hr:celery:",
    "socket_timeout": 5,
    "socket_connect_timeout": 2,
}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BEAT_SCHEDULER = "console.jobs.beat:SteadyScheduler"
CELERY_TIMEZONE = "UTC"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": os.environ.get("HEADRACE_LOG_LEVEL", "INFO")},
}
