"""Liveness and readiness of the console process, for supervisors and load balancers."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from console.pages.parts import is_database_up, is_store_up


@require_safe
@never_cache
def healthz(request: HttpRequest) -> HttpResponse:
    """200 while the process answers at all; looks at nothing else."""
    return HttpResponse("ok\n", content_type="text/plain")


@require_safe
@never_cache
def readyz(request: HttpRequest) -> HttpResponse:
    """200 if PostgreSQL and the store answer, else 503 naming the part that does not."""
    parts = {"database": is_database_up(), "store": is_store_up()}
    status = 200 if all(parts.values()) else 503
    return JsonResponse({"ready": status == 200, "parts": parts}, status=status)
