"""CSV that a spreadsheet shows as text: no cell can become a formula."""

import csv
from collections.abc import AsyncIterator, Iterable, Sequence

from asgiref.sync import sync_to_async
from django.http import StreamingHttpResponse

# What a spreadsheet may read as the start of a formula, full-width forms included.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # noqa: RUF001


def safe_cell(value: object) -> str:
    """Text of a cell; an apostrophe goes before anything that could start a formula."""
    text = "" if value is None else str(value)
    return f"'{text}" if text.lstrip(" ").startswith(FORMULA_STARTS) else text


class _Echo:
    def write(self, line: str) -> str:
        """The csv writer's line, handed on instead of stored."""
        return line


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """CSV text of `rows`; quotes, commas and line breaks survive a round trip."""
    writer = csv.writer(_Echo())
    return "".join(writer.writerow([safe_cell(cell) for cell in row]) for row in rows)


def csv_response(
    filename: str, header: Sequence[str], batches: Iterable[Iterable[Sequence[object]]]
) -> StreamingHttpResponse:
    """Stream batches of rows as a download, one batch in memory at a time.

    `filename` is ours, never a tenant's text. The ASGI server would gather a plain iterator in
    memory first, hence the asynchronous one; each batch is fetched in the request's own thread.
    """
    remaining = iter(batches)
    fetch = sync_to_async(lambda: next(remaining, None))

    async def lines() -> AsyncIterator[str]:
        yield csv_text([header])
        while (batch := await fetch()) is not None:
            yield csv_text(batch)

    response = StreamingHttpResponse(lines(), content_type="text/csv; charset=utf-8")
    response.headers["Content-Disposition"] = f'attachment; filename="{filename}"'
    response.headers["Cache-Control"] = "no-store"
    return response
