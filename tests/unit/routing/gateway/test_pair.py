"""What tells one step of a task from another."""

import json
from typing import Any

from routing.decision.types import Refusal
from routing.gateway.dialects.body import read_call
from routing.gateway.dialects.catalog import OPERATIONS
from routing.gateway.dialects.openai import CHAT
from routing.gateway.dialects.operation import Operation
from routing.gateway.dialects.pair import DIGEST_BYTES, MAX_READ_BYTES, pair_digest

BY_NAME = {operation.name: operation for operation in OPERATIONS}
USER = {"role": "user", "content": "find it"}


def digest(
    *messages: dict[str, Any], salt: str = "s", model: str = "m", operation: Operation = CHAT,
    field: str = "messages", **more: Any,
) -> bytes:  # fmt: skip
    body = {"model": model, field: list(messages), "max_tokens": 5} | more
    call = read_call(json.dumps(body).encode(), operation)
    assert not isinstance(call, Refusal), call
    return pair_digest(salt, model, call)


def turn(number: int, query: str = "a", found: str = "b") -> list[dict[str, Any]]:
    function = {"name": "search", "arguments": json.dumps({"q": query})}
    call = {"id": f"c{number}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": found},
    ]


def test_a_longer_history_with_the_same_end_is_the_same_step():
    first = digest(USER, *turn(1))
    assert len(first) == DIGEST_BYTES
    assert digest(USER, *turn(1), *turn(2), *turn(3)) == first


def test_another_tool_answer_question_model_tenant_or_path_is_another_step():
    base = digest(USER, *turn(1))
    others = [
        digest(USER, *turn(1, query="c")),
        digest(USER, *turn(1, found="c")),
        digest(USER, *turn(1), model="other"),
        digest(USER, *turn(1), salt="t"),
        digest(USER),
        digest(USER, *turn(1), operation=BY_NAME["count_tokens"]),
    ]
    assert len({base, *others}) == len(others) + 1


def test_items_of_the_responses_api_lose_their_ids_too():
    def items(number: int) -> list[dict[str, Any]]:
        return [
            {"type": "function_call", "call_id": f"c{number}", "id": f"f{number}", "name": "x",
             "arguments": "{}"},
            {"type": "function_call_output", "call_id": f"c{number}", "output": "y"},
        ]  # fmt: skip

    responses = BY_NAME["responses"]
    made = [
        digest(*items(number), operation=responses, field="input", max_output_tokens=5)
        for number in (1, 2)
    ]
    assert made[0] == made[1]


def test_large_items_are_taken_as_they_are_spelled():
    long = {"role": "user", "content": "x" * MAX_READ_BYTES}
    assert digest(long) == digest(long)
    assert digest(long) != digest(long | {"content": "y" + "x" * MAX_READ_BYTES})
