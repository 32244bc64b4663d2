"""(placeholder while the supervisor is being built)"""


def ensure(argv: list[str]) -> None:
    """See the supervisor."""
    import os

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.project.settings")
