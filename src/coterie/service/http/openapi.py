"""The OpenAPI 3.1 document: Litestar's, with our error shape, examples, links and keys added."""

from collections.abc import Mapping
from typing import Any

import msgspec
from litestar import Litestar
from msgspec import Struct

from coterie.service.ids import ID, LONGEST

EXAMPLES: dict[str, Any] = {
    "RankBody": {
        "user": "ann",
        "actions": [{"id": "jazz"}, {"id": "news", "features": [{"length": 3, "tone": "calm"}]}],
        "context": [{"device": {"mobile": True}}],
        "excluded": [],
        "eventId": "3f2b8c6e",
        "deferActivation": False,
    },
    "RewardBody": {"value": 0.7},
    "Ranking": {
        "eventId": "3f2b8c6e",
        "chosen": "jazz",
        "ranking": [{"id": "jazz", "probability": 0.95}, {"id": "news", "probability": 0.05}],
    },
    "EvaluationBody": {
        "name": "Monday",
        "policies": [{"name": "calmer", "policy": "hierarchical", "parameters": {"explore": 0.25}}],
        "search": True,
    },
    "FriendsBody": {"friends": {"bob": 1.0, "carl": 0.5}},
    "FriendsAnswer": {"id": "ann", "friends": {"bob": 1.0, "carl": 0.5}},
    "ApplyBody": {"policy": "calmer"},
    "RewardAnswer": {"eventId": "3f2b8c6e", "outcome": "applied"},
}
ERRORS = {
    "400": "The request cannot be read: not JSON, an unknown field, or a value out of range.",
    "401": "A key is needed.",
    "403": "The key may not do this, or a page of another site sent it.",
    "404": "What the path names is not known.",
    "409": "It conflicts with the current state: the event id was used for another request, or a change is running.",
    "413": "The body, or the number of actions or features, is too large.",
    "415": "The body is not declared as application/json.",
    "422": "The request can be read, but not done: its parts contradict each other or a limit.",
    "429": "Too many requests; see Retry-After.",
    "431": "The address and the headers are too large.",
    "503": "Nothing was done: the service is starting, stopping, overloaded, or cannot write.",
}
FOLLOWS = {  # what can follow a rank, with the event id of its answer
    "reward": "Say what the decision was worth.",
    "activate": "Say that a deferred decision was shown.",
    "explain": "Ask why it was made.",
}


def document(app: Litestar, bodies: Mapping[str, type[Struct]]) -> bytes:
    """Return the document as JSON; `bodies` has the body of each operation."""
    schema: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(app.openapi_schema.to_schema()))
    schemas = schema.setdefault("components", {}).setdefault("schemas", {})
    schemas["Error"] = {
        "title": "Error",
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["code", "message"],
                "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
            }
        },
        "examples": [{"error": {"code": "unknown_event", "message": "event '3f2b8c6e' is not known"}}],
    }
    _, ours = msgspec.json.schema_components(set(bodies.values()), ref_template="#/components/schemas/{name}")
    schemas.update(ours)
    for name, definition in schemas.items():
        if name in EXAMPLES:
            definition["examples"] = [EXAMPLES[name]]
    config = schema["paths"]["/v1/configuration"]["get"]["responses"]["200"]
    config["content"] = {"application/json": {"schema": {"$ref": "#/components/schemas/ConfigBody"}}}
    for methods in schema["paths"].values():
        for operation in methods.values():
            _finish(operation)
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path":
                    parameter["schema"] |= {"maxLength": LONGEST, "pattern": ID}
            if operation["operationId"] in bodies:
                name = bodies[operation["operationId"]].__name__
                reference = {"schema": {"$ref": f"#/components/schemas/{name}"}}
                if name == "ConfigBody":
                    operation["responses"]["200"]["content"] = {"application/json": reference}
                operation["requestBody"] = {"required": True, "content": {"application/json": reference}}
    schema["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    }
    schema["security"] = [{}, {"bearer": []}, {"header": []}]
    return msgspec.json.encode(schema)


def _finish(operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    responses.pop("400", None)
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    for status, text in ERRORS.items():
        responses.setdefault(status, {"description": text, "content": content})
    if operation["operationId"] == "rank":
        responses["201"]["links"] = {
            name: {
                "operationId": name,
                "parameters": {"event_id": "$response.body#/eventId"},
                "description": text,
            }
            for name, text in FOLLOWS.items()
        }
