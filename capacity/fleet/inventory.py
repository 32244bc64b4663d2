"""Pages of the inventory: what the fleet is made of, bringing in a CSV file, drift."""

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse

from capacity.fleet.catalogue import TABLES, disagreements, table_page
from capacity.fleet.importer import Report, bring_in, digest_of, kind_named
from capacity.fleet.rules.table import KINDS, MAX_CHARS, Cell, Kind, Value
from capacity.fleet.services.assets import reference_gpu_types
from console.accounts.person import acting
from console.accounts.selectors import Permission, can, require
from console.errors import DomainError
from console.web.forms import ServiceForm
from console.web.htmx import render
from console.web.tables import Column, Strip, number, pager
from console.web.views import choice, page

MAX_FILE_BYTES = MAX_CHARS
DRIFT_COLUMNS = (
    Column("Pool"),
    Column("Replica"),
    Column("What"),
    Column("Recorded"),
    Column("Seen"),
    Column("Next step"),
)
LINE_COLUMNS = (
    number("Line"),
    Column("Row"),
    Column("Result"),
    Column("Column"),
    Column("Fault"),
    Column("Next step"),
)
_AUDITED_AS = {"domain": "failure_domain"}
_WHY_EMPTY = {
    "region": "A region is a place with its own failure domains.",
    "domain": "A failure domain is what fails together inside a region.",
    "gpu_type": "A GPU type is kept when a node first uses it, or when it is brought in.",
    "node": "A node is a machine with like GPUs; placement is checked against them.",
    "model": "A model that pools can serve.",
    "artifact": "An artifact is one version of a model's weights, for rollouts to choose from.",
    "pool": "A pool is a set of like replicas of one model.",
}


class ImportForm(ServiceForm):
    """A CSV text, typed or from a file; applied only as it was looked at."""

    kind = forms.ChoiceField(label="What", choices=[(kind.name, kind.label) for kind in KINDS])
    file = forms.FileField(
        label="CSV file", required=False, help_text="Takes the place of the text below."
    )
    csv = forms.CharField(
        label="CSV text",
        required=False,
        strip=False,
        max_length=MAX_CHARS,
        widget=forms.Textarea(attrs={"class": "middle", "spellcheck": "false"}),
    )
    digest = forms.CharField(required=False, max_length=64, widget=forms.HiddenInput)

    def clean(self) -> dict[str, object]:
        """The text, whichever way it came."""
        given = super().clean() or {}
        file = given.get("file")
        if file is not None:
            if file.size > MAX_FILE_BYTES:
                self.add_error("file", f"The file has more than {MAX_FILE_BYTES} bytes: split it.")
                return given
            try:
                given["csv"] = file.read().decode("utf-8-sig")
            except UnicodeDecodeError:
                self.add_error("file", "The file is not UTF-8 text: save it as CSV UTF-8.")
        if not given.get("csv") and "file" not in self.errors:
            self.add_error("csv", "Choose a file, or paste its text.")
        return given


@page("GET", query=("kind", "after"))
def inventory(request: HttpRequest) -> HttpResponseBase:
    """One table of the inventory, by tabs."""
    require(request.user, Permission.VIEW_ALL)
    kind = kind_named(choice(request, "kind", tuple(TABLES), "pool"))
    rows = table_page(kind.name, after=request.GET.get("after"))
    columns = [
        number(_words(column.name)) if _is_number(column.cell) else Column(_words(column.name))
        for column in kind.columns
    ]
    context = {
        "page": rows,
        "pager": pager(request, rows, "rows"),
        "kind": kind,
        "kinds": KINDS,
        "columns": columns,
        "lines": [_cells(kind, row) for row in rows.rows],
        "why_empty": _WHY_EMPTY[kind.name],
        "import_url": f"{reverse('import_inventory')}?kind={kind.name}",
        "audited_as": _AUDITED_AS.get(kind.name, kind.name),
        "may_change": can(request.user, Permission.MANAGE_FLEET),
        "reference": sorted(reference_gpu_types()) if kind.name == "gpu_type" else (),
    }
    return render(request, "capacity/inventory.html", "rows", context)


@page("GET", "POST", query=("kind",))
def import_inventory(request: HttpRequest) -> HttpResponseBase:
    """Look at what a CSV file would do, line by line; then apply all of it, or nothing."""
    require(request.user, Permission.MANAGE_FLEET)
    chosen = choice(request, "kind", tuple(TABLES), "node")
    form = ImportForm(request.POST or None, request.FILES or None, initial={"kind": chosen})
    report = None
    if request.method == "POST" and form.is_valid():
        report = _bring(request, form)
        if report is not None and report.is_applied:
            messages.success(
                request,
                f"Applied: {report.created} new, {report.changed} changed, "
                f"{report.same} as before.",
                "ok",
            )
            return redirect(f"{reverse('inventory')}?kind={report.kind}")
        if report is not None:
            # The text as it was looked at, ready to be applied or corrected.
            told = {"csv": form.cleaned_data["csv"], "digest": report.digest, "kind": report.kind}
            form = ImportForm(initial=told)
    context = {
        "form": form,
        "report": report,
        "columns": LINE_COLUMNS,
        "kinds": KINDS,
        "strips": _strips(report) if report else (),
    }
    is_refused = bool(form.errors) or (report is not None and report.refused > 0)
    status = 422 if is_refused else 200
    return render(request, "capacity/import_inventory.html", "", context, status=status)


@page("GET")
def drift(request: HttpRequest) -> HttpResponseBase:
    """Where the record and the engines disagree; asked again every five seconds."""
    require(request.user, Permission.VIEW_ALL)
    found = disagreements()
    context = {"found": found, "columns": DRIFT_COLUMNS, "strips": _blind(found.is_blind)}
    return render(request, "capacity/drift.html", "rows", context)


def _bring(request: HttpRequest, form: ImportForm) -> Report | None:
    """The report of a dry run, or of what was applied; None with the refusal at its field."""
    given = form.cleaned_data
    is_dry_run = request.POST.get("act") != "apply" or given["digest"] != digest_of(given["csv"])
    try:
        return bring_in(
            kind=given["kind"], text=given["csv"], actor=acting(request), is_dry_run=is_dry_run
        )
    except DomainError as error:
        form.add_refusal(error)
        return None


def _strips(report: Report) -> list[Strip]:
    said = f"{report.created} new, {report.changed} to change, {report.same} as before"
    if report.refused:
        return [
            Strip(
                "bad",
                "refused",
                f"{report.refused} of {len(report.lines)} lines have faults; {said}.",
                bound="Nothing is applied while one line has a fault.",
                next_step="Correct the lines below and look again.",
            )
        ]
    return [
        Strip(
            "ok",
            "can be applied",
            f"{said}. Nothing is applied yet.",
            next_step="Apply it, or change the text and look again.",
        )
    ]


def _blind(is_blind: bool) -> list[Strip]:
    if not is_blind:
        return []
    return [
        Strip(
            "stale",
            "unknown",
            "The store does not answer, so nothing is known of the engines.",
            next_step="See the system page.",
            url=reverse("system"),
            action="Open it",
        )
    ]


def _cells(kind: Kind, row: dict[str, Value]) -> list[tuple[str, bool]]:
    """Text of each column, and whether it is a number."""
    return [(_shown(row[one.name]), _is_number(one.cell)) for one in kind.columns]


def _shown(value: Value) -> str:
    if value is None or value == "":
        return "—"
    if isinstance(value, dict):
        return ", ".join(f"{name}={one}" for name, one in sorted(value.items())) or "—"
    if isinstance(value, bool):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _is_number(cell: Cell) -> bool:
    return cell in (Cell.WHOLE, Cell.NUMBER)


def _words(name: str) -> str:
    """A column's name as its head: units stay as the field writes them."""
    special = {
        "memory_gib": "Memory, GiB",
        "memory_tb_s": "Bandwidth, TB/s",
        "bf16_tflops": "BF16, TFLOPS",
        "fp8_tflops": "FP8, TFLOPS",
        "tdp_w": "Power, W",
        "size_bytes": "Size, bytes",
        "context_tokens": "Context, tok",
        "output_cap_tokens": "Output cap, tok",
        "bytes_per_token": "Bytes a token",
        "block_size_tokens": "KV block, tok",
        "gpu_type": "GPU type",
        "gpu_count": "GPUs",
        "gpus_per_replica": "GPUs a replica",
        "sha256": "SHA-256",
        "spec": "Settings",
    }
    return special.get(name, name.replace("_", " ").capitalize())
