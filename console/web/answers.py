"""The answer to a question that is a page: one sentence, its reasons, and what to do next."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NextStep:
    """Something to open: the words say what it is for."""

    text: str
    url: str


@dataclass(frozen=True, slots=True)
class Answer:
    """`headline` holds the figure with its unit; `reasons` are sentences, the strongest first.

    `state` is a badge's, `word` what the badge says.
    """

    headline: str
    reasons: tuple[str, ...] = ()
    steps: tuple[NextStep, ...] = ()
    state: str = ""
    word: str = ""
