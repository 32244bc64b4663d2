"""Save rows so that a refusal of the model or of the database names the field at fault.

Uniqueness and checks are decided by the table alone: nothing is looked up first and then inserted.
"""

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db import IntegrityError, models, transaction
from psycopg import errors as pg

from console.errors import Conflict, InvalidInput


def save_valid(row: models.Model, *, taken: str, field: str = "") -> None:
    """Validate the row's fields and write it.

    Raises `InvalidInput` with the field, or `Conflict(taken, field=field)` when a unique
    constraint refuses. Runs in a savepoint: the caller's transaction stays usable.
    """
    try:
        row.full_clean(validate_unique=False, validate_constraints=False)
    except ValidationError as error:
        raise _invalid(error, row) from error
    try:
        with transaction.atomic():
            row.save()
    except IntegrityError as error:
        raise _refused(error, taken, field) from error


def _invalid(error: ValidationError, row: models.Model) -> InvalidInput:
    name, messages = next(iter(error.message_dict.items()))
    if name == NON_FIELD_ERRORS:
        return InvalidInput(messages[0])
    field = row._meta.get_field(name)
    field = getattr(field, "base_field", field)  # of an array, what it holds
    offered = ", ".join(str(value) for value, _label in getattr(field, "flatchoices", ()))
    return InvalidInput(messages[0], field=name, hint=f"One of: {offered}." if offered else "")


def _refused(error: IntegrityError, taken: str, field: str) -> Conflict | InvalidInput:
    cause = error.__cause__
    if isinstance(cause, pg.UniqueViolation | pg.ExclusionViolation):
        return Conflict(taken, field=field, code="taken")
    constraint = cause.diag.constraint_name if isinstance(cause, pg.Error) else None
    return InvalidInput(f"The database refuses this: {constraint or error}.", field=field)
