"""What axe-core finds on a page that is open in a browser."""

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
# In the dark theme only colours differ, so only they are looked at again.
DARK_RULES = ("color-contrast",)
# Whatever is no violation is neither described nor sent here: it is most of a page, and most of
# the time that a check takes.
CHECK = """
    rules => axe.run({runOnly: rules, resultTypes: ["violations"]})
        .then(found => found.violations.map(one => `${one.id}: ${one.nodes[0].html.slice(0, 200)}`))
"""


def faults_of(page: Page, theme: str = "light") -> list[str]:
    """One line for each rule that the page breaks, with the first element that does."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    found: list[str] = page.evaluate(CHECK, list(DARK_RULES if theme == "dark" else RULES))
    return found
