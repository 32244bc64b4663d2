"""Named resources: what a database, tool or index is called where models are called by name."""

import re
from typing import Final

RESOURCE_PREFIX: Final = "resource:"  # before a resource's name where model names stand
RESOURCE_NAME_HINT: Final = (
    "Lower-case letters, digits and . _ : - after a letter or digit, at most 100, such as "
    "vector_query, tool:search or db:orders."
)
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._:-]{0,99}")


def is_resource_name(name: str) -> bool:
    """Whether a resource may be called so."""
    return _NAME.fullmatch(name) is not None


def is_resource(model: str) -> bool:
    """Whether a name in the place of a model's is that of a resource."""
    return model.startswith(RESOURCE_PREFIX)
