"""What services raise when they refuse.

One exception family, mapped once to HTTP and to form errors.
"""

MAX_CURSOR_CHARS = 600  # a few key parts, the longest a 200-character name


class DomainError(Exception):
    """A refusal a caller can act on.

    `code` is stable and machine-readable, `field` names the input at fault (empty: the whole act),
    `hint` says what to do next, `status` is the HTTP status it maps to.
    """

    code = "refused"
    status = 400

    def __init__(self, message: str, *, field: str = "", hint: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.hint = hint
        if code:
            self.code = code


class InvalidInput(DomainError):  # noqa: N818 - named for what it says, not for being an exception
    """A field holds a value that cannot be accepted."""

    code = "invalid"
    status = 422


class BadCursor(InvalidInput):
    """A place in a list that no list of ours named, on pages and over REST alike."""

    def __init__(self) -> None:
        super().__init__(
            "This page address is not one of ours.", field="after", hint="Start at the first page."
        )


class NotFound(DomainError):  # noqa: N818
    """No such object, or none that the caller may see."""

    code = "not_found"
    status = 404


class NoSuchTenant(NotFound):
    """No tenant of that name, or another person's: one answer, so that nobody can tell which."""

    def __init__(self, *, field: str = "") -> None:
        super().__init__("No such tenant.", field=field)


class Forbidden(DomainError):  # noqa: N818
    """The caller's role does not allow the act."""

    code = "forbidden"
    status = 403


class Conflict(DomainError):  # noqa: N818
    """The object changed since the caller read it, or another act holds it."""

    code = "conflict"
    status = 409
