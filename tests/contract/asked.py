"""What tests ask of clients, and what a scripted engine answers."""

from typing import Any

from pydantic import BaseModel

HI: Any = [{"role": "user", "content": "hi"}]
TOOL = {
    "name": "weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}

MESSAGE: dict[str, Any] = {
    "id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
    "content": [{"type": "text", "text": "yo"}], "stop_sequence": None,
    "usage": {"input_tokens": 3, "output_tokens": 1},
}  # fmt: skip


class City(BaseModel):
    """What a structured answer holds."""

    name: str
    people: int
