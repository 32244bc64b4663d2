"""OpenAI's operations, and those that engines add to them: how many prompts a body is."""

from routing.gateway.dialects.fields import bad, check_objects, decode_items, read_items
from routing.gateway.dialects.operation import Fields, Operation, Prompts

MAX_MESSAGES = 10_000  # a long agent session has hundreds
MAX_PROMPTS = 128
MAX_INPUTS = 2_048  # texts of one embeddings call, as OpenAI bounds them
MAX_DOCUMENTS = 1_024  # of one rerank or score call: each is a prompt of its own
# What an engine adds to a text without a template: marks of its begin, middle and end.
_TEXT_FRAME_TOKENS = 4
# A reranker's template holds an instruction and marks around each pair.
_PAIR_FRAME_TOKENS = 96
# Members whose bytes the engine turns into prompt tokens.
_PROMPT_FIELDS = frozenset((
    "messages", "prompt", "suffix", "tools", "functions", "documents", "response_format",
    "chat_template", "chat_template_kwargs", "guided_json", "guided_grammar",
    "structured_outputs",
))  # fmt: skip
_SCORE_FIELDS = (
    ("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"),
)  # fmt: skip
_PAIR_EXTRAS = ("instruction", "chat_template_kwargs")


def _messages(fields: Fields) -> Prompts:
    check_objects(fields, "messages", MAX_MESSAGES)
    return Prompts()


def _texts(fields: Fields, name: str, most: int) -> Prompts:
    """A text, several, token ids, or several of those."""
    raw = fields.get(name, b"")
    if raw.startswith(b'"'):
        return Prompts()
    if not raw.startswith(b"["):
        bad(f"The field {name!r} must be a string or an array.", name)
    items = decode_items(raw)
    if items and bytes(items[0])[:1].isdigit():
        return Prompts(1, len(items))
    if not items or len(items) > most:
        bad(f"The field {name!r} must hold 1 to {most} prompts.", name)
    if bytes(items[0]).startswith(b"["):
        return Prompts(len(items), sum(bytes(item).count(b",") + 1 for item in items))
    return Prompts(len(items))


def _tokenize(fields: Fields) -> Prompts:
    if "messages" in fields:
        return _messages(fields)
    if not fields.get("prompt", b"").startswith(b'"'):
        bad("The field 'prompt' must be a string, or 'messages' an array.", "prompt")
    return Prompts()


def _sides(fields: Fields, name: str) -> int:
    """How many texts one side of a score is."""
    raw = fields[name]
    if not raw.startswith(b"["):
        if raw[:1] not in (b'"', b"{"):
            bad(f"The field {name!r} must be a text or an array.", name)
        return 1
    return len(read_items(fields, name, MAX_DOCUMENTS))


def _pairs(fields: Fields, first: str, second: str) -> Prompts:
    """One prompt a pair; a side of one text is read with each of the other's."""
    many = _sides(fields, first), _sides(fields, second)
    pairs = max(many)
    if any(count not in (1, pairs) for count in many):
        bad(f"The field {second!r} must hold as many texts as {first!r}.", second)
    repeats = {name: pairs for name, count in zip((first, second), many, strict=True) if count == 1}
    return Prompts(pairs, 0, repeats | dict.fromkeys(_PAIR_EXTRAS, pairs))


def _rerank(fields: Fields) -> Prompts:
    for name in ("query", "documents"):
        if name not in fields:
            bad(f"The field {name!r} is missing.", name)
    if fields["query"][:1] not in (b'"', b"{"):
        bad("The field 'query' must be one text.", "query")
    return _pairs(fields, "query", "documents")


def _score(fields: Fields) -> Prompts:
    stated = [pair for pair in _SCORE_FIELDS if pair[0] in fields and pair[1] in fields]
    if not stated:
        bad("The fields 'text_1' and 'text_2' are missing.", "text_1")
    return _pairs(fields, *stated[0])


CHAT = Operation(
    "chat", b"/v1/chat/completions", "messages", _PROMPT_FIELDS, _messages,
    bounds=("max_tokens", "max_completion_tokens"), streams=True, asks_usage=True,
    hosted_bound="max_completion_tokens", templated="messages",
)  # fmt: skip
COMPLETIONS = Operation(
    "completions", b"/v1/completions", "prompt", _PROMPT_FIELDS,
    lambda fields: _texts(fields, "prompt", MAX_PROMPTS),
    bounds=("max_tokens", "max_completion_tokens"), streams=True, asks_usage=True,
    frame_tokens=_TEXT_FRAME_TOKENS,
)  # fmt: skip
EMBEDDINGS = Operation(
    "embeddings", b"/v1/embeddings", "input", frozenset(("input",)),
    lambda fields: _texts(fields, "input", MAX_INPUTS), frame_tokens=_TEXT_FRAME_TOKENS,
)  # fmt: skip
RERANK = Operation(
    "rerank", b"/v1/rerank", "documents", frozenset(("query", "documents", *_PAIR_EXTRAS)),
    _rerank, frame_tokens=_PAIR_FRAME_TOKENS,
)  # fmt: skip
SCORE = Operation(
    "score", b"/v1/score", "text_2",
    frozenset((*(name for pair in _SCORE_FIELDS for name in pair), *_PAIR_EXTRAS)),
    _score, frame_tokens=_PAIR_FRAME_TOKENS,
)  # fmt: skip
TOKENIZE = Operation(
    "tokenize", b"/tokenize", "prompt", _PROMPT_FIELDS, _tokenize,
    takes_salt=False, takes_priority=False, frame_tokens=_TEXT_FRAME_TOKENS, fits_context=False,
    templated="messages",
)  # fmt: skip
