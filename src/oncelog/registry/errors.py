"""What the registry refuses: a status of HTTP, and a code that clients of Confluent's registry know."""

from __future__ import annotations


class Refusal(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        """The first three digits, as in 40401."""
        return self.code if self.code < 1000 else self.code // 100


def subject_not_found(subject: str) -> Refusal:
    return Refusal(40401, f"Subject '{subject}' not found.")


def version_not_found(version: int) -> Refusal:
    return Refusal(40402, f"Version {version} not found.")


def schema_not_found(schema_id: object = None) -> Refusal:
    return Refusal(40403, "Schema not found" if schema_id is None else f"Schema {schema_id} not found")


def invalid_schema(problem: object) -> Refusal:
    return Refusal(42201, f"Invalid schema: {problem}")


def not_permitted(problem: str) -> Refusal:
    return Refusal(42205, problem)
