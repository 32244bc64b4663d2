"""The reference's tables follow the OpenAPI document."""

from console.rest.reference import Field, topics

SCHEMAS = {
    "Item": {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "at": {"type": "string", "format": "date-time", "nullable": True},
            "tags": {"type": "array", "items": {"type": "string"}},
            "owner": {"allOf": [{"$ref": "#/components/schemas/Owner"}], "description": "Who."},
        },
        "required": ["id"],
    },
    "Owner": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}},
    "Loop": {"type": "object", "properties": {"in": {"$ref": "#/components/schemas/Loop"}}},
}


def document(**paths: dict) -> dict:
    made = {path: {"get": {"operationId": path, **item}} for path, item in paths.items()}
    return {"paths": made, "components": {"schemas": SCHEMAS}}


def body_of(schema: dict) -> tuple[Field, ...]:
    asked = {"requestBody": {"content": {"application/json": {"schema": schema}}}}
    return topics(document(**{"/api/v1/x/": asked}))[0].operations[0].body


def test_fields_inside_fields_and_lists_are_named_by_their_path():
    found = body_of({"type": "array", "items": {"$ref": "#/components/schemas/Item"}})
    assert found == (
        Field("[].id", "integer", True),
        Field("[].at", "date-time or null", False),
        Field("[].tags", "list of string", False),
        Field("[].owner", "object", False, "Who."),
        Field("[].owner.name", "string", False, "at most 9 characters"),
    )


def test_a_schema_that_holds_itself_ends():
    assert [item.name for item in body_of({"$ref": "#/components/schemas/Loop"})] == [
        "in", "in.in", "in.in.in", "in.in.in.in",
    ]  # fmt: skip


def test_what_belongs_to_a_tenant_is_a_topic_of_its_own():
    paths = ("tenants/", "tenants/{slug}/", "tenants/{slug}/suspend/", "tenants/{slug}/keys/{id}/")
    found = topics(document(**{f"/api/v1/{path}": {} for path in (*paths, "me/")}))
    assert [(topic.name, len(topic.operations)) for topic in found] == [
        ("keys", 1), ("me", 1), ("tenants", 3),
    ]  # fmt: skip


def test_parameters_say_where_they_stand_and_what_bounds_them():
    limit = {"type": "integer", "minimum": 1, "maximum": 200, "default": 50}
    one = {"name": "limit", "in": "query", "schema": limit}
    found = topics(document(**{"/api/v1/x/": {"parameters": [one]}}))
    assert found[0].operations[0].parameters == (
        Field("limit", "integer", False, "query; default 50; from 1; to 200"),
    )
