"""`invariant()`: what must never happen, checked on both sides of a boundary and never compiled away."""


class InvariantError(Exception):
    """A bug in Oncelog itself, never the fault of a client."""


def invariant(condition: object, message: str, *details: object) -> None:
    if not condition:
        raise InvariantError(message % details if details else message)
