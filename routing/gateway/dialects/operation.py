"""What one path of the API is: which members it reads, what it may hold, how it words things.

An operation is data and a few pure functions; `catalog` lists all that exist. The walk, the relay
and the splicing of bodies are the same for every one of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from routing.gateway.dialects.events import OPENAI_LOOK, Look
from routing.gateway.dialects.usage import Counts, Usage, chat_usage

Fields = dict[str, bytes]


class Style(StrEnum):
    """Whose shape the errors have."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


class Prompts(NamedTuple):
    """What a body asks to be read.

    `number` prompts run at once, of which `ids` tokens are given as token ids; `repeats` are
    members that are read more than once (a query, for each of its documents).
    """

    number: int = 1
    ids: int = 0
    repeats: dict[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """One path.

    `field` is the member that holds the prompt, `prompt_fields` all members whose bytes become
    prompt tokens, `frame_tokens` what the engine adds to each prompt beyond them at most. `bounds`
    are the members that bound the output (the first is put in when none is stated, `hosted_bound`
    at a provider that wants another; none: there is no output). `asks_usage`: a stream tells its
    usage only when `stream_options` asks. `pictures` finds embedded pictures in the prompt's bytes:
    a `data:` URL each, empty for one by address.
    `fits_context`: a prompt is held to the model's context (counting takes longer ones too).
    `templated` is the member whose presence means that the engine writes the prompt by the model's
    chat template.
    """

    name: str
    path: bytes
    field: str
    prompt_fields: frozenset[str]
    prompts: Callable[[Fields], Prompts]
    frame_tokens: int = 0
    bounds: tuple[str, ...] = ()
    hosted_bound: str = ""
    streams: bool = False
    asks_usage: bool = False
    takes_salt: bool = True
    takes_priority: bool = True
    fits_context: bool = True
    templated: str = ""
    style: Style = Style.OPENAI
    pictures: Callable[[bytes], list[bytes]] | None = None
    usage: Callable[[Counts], Usage | None] = chat_usage
    look: Look = OPENAI_LOOK
    is_cut_off: Callable[[bytes], bool] | None = None

    @property
    def generates(self) -> bool:
        """Whether an answer has output tokens."""
        return bool(self.bounds)
