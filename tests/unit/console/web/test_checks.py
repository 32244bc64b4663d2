"""A console whose headers were taken away does not start."""

from django.core import checks


def test_the_shipped_settings_pass():
    assert checks.run_checks(tags=["headrace"]) == []


def test_missing_or_late_headers_are_an_error(settings):
    for middleware in ([], [*settings.MIDDLEWARE[2:], *settings.MIDDLEWARE[:2]]):
        settings.MIDDLEWARE = middleware
        assert [found.id for found in checks.run_checks(tags=["headrace"])] == ["headrace.E001"]
