"""The table of a transactional producer's states, and how errors are classified by the step that meets them."""

from __future__ import annotations

import pytest

from oncelog.client.classification import Step, transaction_error
from oncelog.client.errors import AbortableError, ErrorCode, FatalError, IllegalState, ProducerFenced
from oncelog.client.transaction_state import ADVICE, TRANSITIONS, Event, State, TransactionState

ABORTABLE = AbortableError(ErrorCode.TRANSACTION_ABORTABLE, "lost")
FENCED = ProducerFenced(ErrorCode.PRODUCER_FENCED, "gone")


def state_after(*events: Event) -> TransactionState:
    state = TransactionState()
    for event in events:
        state.on(event)
    return state


def test_every_state_can_be_reached_and_has_advice() -> None:
    reachable = {State.UNINITIALISED} | {target for row in TRANSITIONS.values() for target in row.values()}
    assert reachable == set(State) == set(TRANSITIONS) == set(ADVICE)


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("event", list(Event))
def test_events_without_an_entry_are_refused_and_change_nothing(state: State, event: Event) -> None:
    subject = TransactionState()
    subject.current = state
    if event in TRANSITIONS[state]:
        subject.on(event)
        assert subject.current is TRANSITIONS[state][event]
        return
    with pytest.raises(IllegalState, match=ADVICE[state].split(":")[0][:10].replace("(", r"\(")):
        subject.on(event)
    assert subject.current is state


def test_an_abortable_error_leaves_only_abort() -> None:
    state = state_after(Event.INITIALISED, Event.BEGIN)
    state.fail(ABORTABLE)
    for event in (Event.COMMIT, Event.BEGIN, Event.PREPARE):
        with pytest.raises(AbortableError, match="lost"):
            state.check(event)
    with pytest.raises(AbortableError):
        state.check_accepting()
    state.on(Event.ABORT)
    state.on(Event.ENDED)
    assert (state.current, state.error) == (State.READY, None)


def test_a_fatal_error_leaves_nothing_and_is_not_replaced() -> None:
    state = state_after(Event.INITIALISED, Event.BEGIN)
    state.fail(FENCED)
    state.fail(ABORTABLE)
    for event in (Event.ABORT, Event.COMMIT, Event.BEGIN, Event.INITIALISED):
        with pytest.raises(ProducerFenced, match="gone"):
            state.check(event)


def test_an_abortable_error_between_transactions_is_nobodys() -> None:
    state = state_after(Event.INITIALISED)
    state.fail(ABORTABLE)
    assert state.current is State.READY


def test_a_commit_whose_outcome_is_unknown_cannot_be_turned_into_an_abort() -> None:
    state = state_after(Event.INITIALISED, Event.BEGIN, Event.COMMIT)
    with pytest.raises(IllegalState, match="call commit_transaction"):
        state.on(Event.ABORT)
    state.on(Event.COMMIT)
    assert state.current is State.COMMITTING


def test_nothing_is_accepted_once_prepared() -> None:
    state = state_after(Event.INITIALISED, Event.BEGIN, Event.PREPARE)
    with pytest.raises(IllegalState):
        state.check_accepting()


# The table of semantics, written down a second time: codes not listed are fatal at the coordinator's steps.
COORDINATOR = (Step.INIT, Step.ADD, Step.OFFSETS, Step.COMMIT, Step.ABORT)
EXPECTED_ABORTABLE = {
    120: {Step.INIT, Step.ADD, Step.OFFSETS, Step.COMMIT},
    53: {Step.INIT},
    30: {Step.ADD, Step.OFFSETS},
    29: {Step.ADD, Step.OFFSETS},
    3: {Step.ADD, Step.OFFSETS},
    55: {Step.ADD, Step.OFFSETS},
    59: {Step.ADD, Step.COMMIT},
    12: {Step.OFFSETS},
    22: {Step.OFFSETS},
    25: {Step.OFFSETS},
    69: {Step.OFFSETS},
    113: {Step.OFFSETS},
    82: {Step.OFFSETS},
}
FATAL_FOR_PRODUCE = {90, 49, 53, 31, 35, 43}


@pytest.mark.parametrize("code", [code for code in ErrorCode if code is not ErrorCode.NONE])
def test_every_code_is_classified_at_every_step(code: ErrorCode) -> None:
    for step in COORDINATOR:
        error = transaction_error(step, code, "what")
        assert isinstance(error, AbortableError if step in EXPECTED_ABORTABLE.get(code, ()) else FatalError)
        assert error.code is code
    produce = transaction_error(Step.PRODUCE, code, "what")
    assert isinstance(produce, FatalError if code in FATAL_FOR_PRODUCE else AbortableError)


@pytest.mark.parametrize("step", COORDINATOR)
def test_fencing_is_told_apart(step: Step) -> None:
    assert isinstance(transaction_error(step, 90, ""), ProducerFenced)
    assert isinstance(transaction_error(step, 47, ""), ProducerFenced)
    assert isinstance(transaction_error(Step.PRODUCE, 90, ""), ProducerFenced)
    assert isinstance(transaction_error(Step.PRODUCE, 47, ""), AbortableError)


def test_codes_of_newer_brokers_are_kept_in_the_text() -> None:
    error = transaction_error(Step.COMMIT, 999, "x")
    assert isinstance(error, FatalError)
    assert "999" in str(error)
