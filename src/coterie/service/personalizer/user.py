"""The user of a request to the compatible API, taken from the context features."""

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.data.logs.interactions import SHARED
from coterie.models.features import id_at, without
from coterie.service.http.compatible import Refusal
from coterie.service.ids import RULE, is_id


def find_user(context: Sequence[Mapping[str, Any]], path: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the user, and the context without the user's id.

    The id is removed because it would be hashed into the vectors as a feature: then no two users would have the same
    context, and users could not learn from each other.

    >>> find_user([{"device": "phone"}, {"user": {"id": "ann", "age": 30}}], "user.id")
    ('ann', [{'device': 'phone'}, {'user': {'age': 30}}])
    """
    keys = path.split(".")
    for k, part in enumerate(context):
        value = id_at(part, keys)
        if value is not None:
            user = str(value)
            if not is_id(user):
                message = f"the user at {path!r} is {user[:80]!r}, {RULE}"
                raise Refusal(400, "InvalidRankRequest", message, "contextFeatures")
            return user, [*map(dict, context[:k]), dict(without(part, keys)), *map(dict, context[k + 1 :])]
    return SHARED, [*map(dict, context)]
