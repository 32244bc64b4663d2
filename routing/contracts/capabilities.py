"""What the engines of a pool can do, as facts that a request is held against before it is sent."""

from collections.abc import Iterable
from enum import StrEnum


class ApiStyle(StrEnum):
    """Whose API a pool's addresses speak: an engine of ours, or a hosted provider's."""

    ENGINE = "engine"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"


class Capability(StrEnum):
    """What a request may ask for. The first nine are operations, by their own names."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    COUNT_TOKENS = "count_tokens"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    SCORE = "score"
    TOKENIZE = "tokenize"
    TOOLS = "tools"  # functions that the caller runs
    HOSTED_TOOLS = "hosted_tools"  # tools that the provider runs: search, code, MCP servers
    STRUCTURED_OUTPUT = "structured_output"
    IMAGE_INPUT = "image_input"
    AUDIO_INPUT = "audio_input"
    AUDIO_OUTPUT = "audio_output"
    STATE = "state"  # stored answers, conversations, background work
    ENGINE_OPTIONS = "engine_options"  # members that only engines of ours know
    CANCELLATION = "cancellation"  # work stops when its caller hangs up


_COMMON = (
    Capability.TOOLS,
    Capability.STRUCTURED_OUTPUT,
    Capability.IMAGE_INPUT,
    Capability.CANCELLATION,
)
# Hosted tools, audio output and state are nobody's by default: what they cost is in no hold, and
# what they keep is at one replica, or with a provider under one key for all tenants.
DEFAULTS: dict[ApiStyle, frozenset[Capability]] = {
    ApiStyle.ENGINE: frozenset(Capability)
    - {Capability.HOSTED_TOOLS, Capability.AUDIO_OUTPUT, Capability.STATE},
    ApiStyle.OPENAI: frozenset((
        Capability.CHAT, Capability.COMPLETIONS, Capability.RESPONSES, Capability.EMBEDDINGS,
        Capability.AUDIO_INPUT, *_COMMON,
    )),
    ApiStyle.ANTHROPIC: frozenset((Capability.MESSAGES, Capability.COUNT_TOKENS, *_COMMON)),
}  # fmt: skip
# Never to be had: no hold bounds them, and no tenant could be kept from another's.
NEVER = frozenset((Capability.HOSTED_TOOLS, Capability.AUDIO_OUTPUT, Capability.STATE))
OFFERED = tuple(one for one in Capability if one not in NEVER)


def capabilities_of(style: ApiStyle, stated: Iterable[str]) -> frozenset[str]:
    """What a pool can do: as stated, or what its style usually can. Unknown names are nothing."""
    found = frozenset(one.value for one in OFFERED) & frozenset(stated)
    return found or frozenset(one.value for one in DEFAULTS[style])
