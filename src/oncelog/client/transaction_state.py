"""The states of a transactional producer, as one table.

Theory of operation. Every call of the application and every answer that matters is an event; the table says which state
it leads to, and an event that has no entry is a mistake of the caller (IllegalState), never a silent no-op. Errors are
events like others: an abortable one leaves only the way through abort, a fatal one leaves none.

    UNINITIALISED    init_transactions() has not succeeded yet
    READY            between transactions
    IN_TRANSACTION   records and offsets are accepted
    PREPARED         flushed, waiting for the other side of a two-phase commit; nothing more is accepted
    COMMITTING       commit is decided here; while its outcome is unknown, only commit may be called again
    ABORTING         abort is decided here
    ABORTABLE_ERROR  this transaction is lost, the producer is not
    FATAL_ERROR      the producer is finished
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from oncelog.client.errors import AbortableError, FatalError, IllegalState, TransactionError


class State(Enum):
    UNINITIALISED = "uninitialised"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    PREPARED = "prepared"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "abortable error"
    FATAL_ERROR = "fatal error"


class Event(Enum):
    INITIALISED = "initialise transactions"
    RECOVERED = "take over a prepared transaction"
    BEGIN = "begin a transaction"
    PREPARE = "prepare the transaction"
    COMMIT = "commit the transaction"
    ABORT = "abort the transaction"
    ENDED = "finish the transaction"
    ABORTABLE = "meet an abortable error"
    FATAL = "meet a fatal error"


TRANSITIONS: Final[dict[State, dict[Event, State]]] = {
    State.UNINITIALISED: {
        Event.INITIALISED: State.READY,
        Event.RECOVERED: State.PREPARED,
        Event.ABORTABLE: State.UNINITIALISED,
        Event.FATAL: State.FATAL_ERROR,
    },
    State.READY: {
        Event.BEGIN: State.IN_TRANSACTION,
        Event.FATAL: State.FATAL_ERROR,
    },
    State.IN_TRANSACTION: {
        Event.PREPARE: State.PREPARED,
        Event.COMMIT: State.COMMITTING,
        Event.ABORT: State.ABORTING,
        Event.ABORTABLE: State.ABORTABLE_ERROR,
        Event.FATAL: State.FATAL_ERROR,
    },
    State.PREPARED: {
        Event.COMMIT: State.COMMITTING,
        Event.ABORT: State.ABORTING,
        Event.ABORTABLE: State.ABORTABLE_ERROR,
        Event.FATAL: State.FATAL_ERROR,
    },
    State.COMMITTING: {
        Event.COMMIT: State.COMMITTING,
        Event.ENDED: State.READY,
        Event.ABORTABLE: State.ABORTABLE_ERROR,
        Event.FATAL: State.FATAL_ERROR,
    },
    State.ABORTING: {
        Event.ABORT: State.ABORTING,
        Event.ENDED: State.READY,
        Event.ABORTABLE: State.ABORTING,
        Event.FATAL: State.FATAL_ERROR,
    },
    State.ABORTABLE_ERROR: {
        Event.ABORT: State.ABORTING,
        Event.ABORTABLE: State.ABORTABLE_ERROR,
        Event.FATAL: State.FATAL_ERROR,
    },
    State.FATAL_ERROR: {
        Event.ABORTABLE: State.FATAL_ERROR,
        Event.FATAL: State.FATAL_ERROR,
    },
}

ADVICE: Final[dict[State, str]] = {
    State.UNINITIALISED: "call init_transactions() first",
    State.READY: "begin_transaction() comes next",
    State.IN_TRANSACTION: "commit or abort the open transaction first",
    State.PREPARED: "call complete(), commit_transaction() or abort_transaction() first",
    State.COMMITTING: "the commit's outcome is not known yet: call commit_transaction() again",
    State.ABORTING: "call abort_transaction() again until it succeeds",
    State.ABORTABLE_ERROR: "call abort_transaction() first",
    State.FATAL_ERROR: "close this producer and make a new one",
}


class TransactionState:
    """The present state, and the error that led to it."""

    def __init__(self) -> None:
        self.current = State.UNINITIALISED
        self.error: TransactionError | None = None

    def allows(self, event: Event) -> bool:
        return event in TRANSITIONS[self.current]

    def check(self, event: Event) -> None:
        """Raise what a call for this event must raise now, if anything: the stored error, or IllegalState."""
        if self.allows(event):
            return
        if self.error is not None and self.current in (State.ABORTABLE_ERROR, State.FATAL_ERROR):
            raise type(self.error)(self.error.code, f"cannot {event.value}: {self.error.message}") from self.error
        raise IllegalState(f"cannot {event.value} while {self.current.value}: {ADVICE[self.current]}")

    def on(self, event: Event, error: TransactionError | None = None) -> None:
        self.check(event)
        self.current = TRANSITIONS[self.current][event]
        if error is not None and not isinstance(self.error, FatalError):
            self.error = error
        if self.current in (State.READY, State.IN_TRANSACTION):
            self.error = None

    def fail(self, error: TransactionError) -> None:
        """Take note of an error, where it still matters: between transactions only a fatal one does."""
        event = Event.ABORTABLE if isinstance(error, AbortableError) else Event.FATAL
        if self.allows(event):
            self.on(event, error)

    def check_accepting(self) -> None:
        """Raise unless records and offsets may be sent now."""
        if self.current is not State.IN_TRANSACTION:
            if self.error is not None and self.current in (State.ABORTABLE_ERROR, State.FATAL_ERROR):
                raise type(self.error)(self.error.code, self.error.message) from self.error
            raise IllegalState(f"cannot send while {self.current.value}: {ADVICE[self.current]}")
