"""What stands in for the context of a fault, as its type."""

from typing import cast

from harness.faults.contract import Context


def means(context: object) -> Context:
    """What stands in for a context has what its fault uses; a fault that asks for more fails there."""
    return cast(Context, context)
