"""Random clients, clocks, crashes and log failures against `GroupShard`, with a small model of what must hold.

- Every request is answered once, and in bounded time once everybody has stopped.
- The generation of a group never goes back while a shard lives, and never below what the log has after a crash.
- A member is only ever given the assignment that the leader of its generation made for it.
- All members of a generation are told the same leader and protocol.
- What is committed is what was acknowledged last; a transaction's offsets count from its commit on.
- Replaying the log rebuilds the durable state, at any time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from oncelog.coordinator.group.config import GroupConfig
from oncelog.core.errors import ErrorCode as E
from oncelog.core.ids import TopicPartition
from oncelog.protocol.messages.join_group import JoinGroupResponse
from oncelog.protocol.messages.sync_group import SyncGroupResponse
from tests.unit.coordinator.group.harness import GROUP, Pending, Shell, leaving, protocol, subscription
from tests.unit.coordinator.group.shard_state import durable_state

CLIENTS = 4
PARTITIONS = 2
PRODUCERS = (101, 102)
LONGEST_WAIT_MS = 1_000_000
"""A round may follow a round: the wait for a newcomer (300 s), join and sync time-outs and sessions in a row."""


@dataclass
class Client:
    """A consumer: what it believes, which may be out of date, and the requests it waits for."""

    instance_id: str | None
    member_id: str = ""
    generation_id: int = -1
    is_leader: bool = False
    peers: tuple[tuple[str, str], ...] = ()
    """Member id and label of everybody, when it leads."""
    joining: Pending[JoinGroupResponse] | None = None
    syncing: Pending[SyncGroupResponse] | None = None
    synced_generation_id: int = -1
    synced_as: str = ""
    version: int = 0
    """Of its subscription."""


@dataclass
class Model:
    committed: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Value and age by partition."""
    pending: dict[int, dict[int, tuple[int, int]]] = field(default_factory=dict)
    age: int = 0

    def stamp(self, value: int) -> tuple[int, int]:
        self.age += 1
        return value, self.age

    def finish(self, producer_id: int, commit: bool) -> None:
        for partition, entry in self.pending.pop(producer_id, {}).items():
            if commit and entry[1] > self.committed.get(partition, (0, 0))[1]:
                self.committed[partition] = entry


clients = st.integers(0, CLIENTS - 1)
partitions = st.integers(0, PARTITIONS - 1)


class GroupMachine(RuleBasedStateMachine):
    @initialize(
        delay_ms=st.sampled_from([0, 3_000]),
        max_size=st.sampled_from([2, 1_000]),
        static=st.sets(clients),
        requires_id=st.booleans(),
    )
    def start(self, delay_ms: int, max_size: int, static: set[int], requires_id: bool) -> None:
        config = GroupConfig(initial_rebalance_delay_ms=delay_ms, max_size=max_size)
        self.shell = Shell(config)
        self.requires_id = requires_id
        self.clients = [Client(f"i{n}" if n in static else None) for n in range(CLIENTS)]
        self.model = Model()
        self.asked: list[Pending[Any]] = []
        self.highest_generation_id = 0
        self.leaders: dict[int, tuple[str, str | None]] = {}
        self.value = 0

    # --- what clients do -----------------------------------------------------------------------------------------

    @rule(n=clients, as_newcomer=st.booleans(), changes=st.booleans())
    def join(self, n: int, as_newcomer: bool, changes: bool) -> None:
        client = self.clients[n]
        if as_newcomer:
            client.member_id = ""
        client.version += changes
        client.joining = self.shell.join(
            client.member_id,
            client.instance_id,
            protocols=[protocol("range", subscription("in", f"v{client.version}"))],
            requires_known_member_id=self.requires_id,
            client_id=f"c{n}",
        )
        self.asked.append(client.joining)
        self.settle()

    @rule(n=clients, is_stale=st.booleans())
    def sync(self, n: int, is_stale: bool) -> None:
        client = self.clients[n]
        generation_id = client.generation_id - is_stale
        assignments = {}
        if client.is_leader:
            assignments = {member_id: f"{generation_id}/{label}".encode() for member_id, label in client.peers}
        client.synced_generation_id, client.synced_as = generation_id, client.instance_id or client.member_id
        client.syncing = self.shell.sync(client.member_id, generation_id, assignments)
        self.asked.append(client.syncing)
        self.settle()

    @rule(n=clients)
    def heartbeat(self, n: int) -> None:
        client = self.clients[n]
        error = self.shell.heartbeat(client.member_id, client.generation_id, client.instance_id)
        if error is E.NONE:
            assert self.shell.state in ("CompletingRebalance", "Stable")

    @rule(n=clients, by_instance=st.booleans())
    def leave(self, n: int, by_instance: bool) -> None:
        client = self.clients[n]
        result = self.shell.leave(leaving("" if by_instance else client.member_id, client.instance_id))
        assert len(result.members) == 1 or result.error_code
        self.settle()

    @rule(n=clients, partition=partitions)
    def commit(self, n: int, partition: int) -> None:
        client = self.clients[n]
        self.value += 1
        error = self.shell.commit(
            self.value, partition=partition, generation_id=client.generation_id, member_id=client.member_id
        )
        if not error:
            self.model.committed[partition] = self.model.stamp(self.value)
        elif error is E.ILLEGAL_GENERATION:
            assert client.generation_id != self.shell.generation_id

    @rule(partition=partitions)
    def commit_by_operator(self, partition: int) -> None:
        self.value += 1
        state = self.shell.state
        error = self.shell.commit(self.value, partition=partition)
        assert (error is E.UNKNOWN_MEMBER_ID) == (state not in ("Empty", "Dead"))
        if not error:
            self.model.committed[partition] = self.model.stamp(self.value)

    @rule(n=clients, partition=partitions, producer_id=st.sampled_from(PRODUCERS))
    def commit_in_transaction(self, n: int, partition: int, producer_id: int) -> None:
        client = self.clients[n]
        self.value += 1
        error = self.shell.commit_in_transaction(
            producer_id,
            self.value,
            partition=partition,
            generation_id=client.generation_id,
            member_id=client.member_id,
        )
        if not error:
            self.model.pending.setdefault(producer_id, {})[partition] = self.model.stamp(self.value)

    @rule(producer_id=st.sampled_from(PRODUCERS), commit=st.booleans())
    def end_transaction(self, producer_id: int, commit: bool) -> None:
        self.shell.marker(producer_id, commit=commit)
        self.model.finish(producer_id, commit)

    @rule(partition=partitions)
    def delete_offset(self, partition: int) -> None:
        result = self.shell.delete_offsets(TopicPartition("in", partition))
        if not result.error_code and not result.topics[0].partitions[0].error_code:
            self.model.committed.pop(partition, None)
            for pending in self.model.pending.values():
                pending.pop(partition, None)

    @rule()
    def delete_group(self) -> None:
        state, has_pending = self.shell.state, any(self.model.pending.values())
        error = self.shell.delete_group()
        if state == "Empty" and not has_pending:
            assert error is E.NONE
            self.model.committed.clear()
            self.highest_generation_id = 0
            self.leaders.clear()
        else:
            assert error is (E.GROUP_ID_NOT_FOUND if state == "Dead" else E.NON_EMPTY_GROUP)

    @rule(who=st.sets(clients, min_size=1), rounds=st.integers(1, 6), pause_ms=st.sampled_from([0, 1_000, 3_000]))
    def behave(self, who: set[int], rounds: int, pause_ms: int) -> None:
        """Some clients do what real ones do for a while, and the others are silent."""
        for _ in range(rounds):
            for n in sorted(who):
                self.do_the_right_thing(n)
            self.time_passes(pause_ms)
        event(f"{self.shell.state} with {len(self.shell.shard.describe_group(GROUP).members)} members")

    def do_the_right_thing(self, n: int) -> None:
        """Join, sync, heartbeat, and join again when told to."""
        client = self.clients[n]
        if client.joining is not None or client.syncing is not None:
            return
        if client.generation_id < 0:
            self.join(n, False, False)
            return
        error = self.shell.heartbeat(client.member_id, client.generation_id, client.instance_id)
        if error in (E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID):
            client.member_id = ""
        if error:
            client.generation_id = -1
        else:
            self.sync(n, False)

    # --- what happens to everybody -------------------------------------------------------------------------------

    @rule(delta_ms=st.sampled_from([1, 1_000, 3_000, 9_999, 60_000, 300_000]))
    def time_passes(self, delta_ms: int) -> None:
        self.shell.advance(delta_ms)
        self.settle()
        if self.shell.state == "Dead":
            self.highest_generation_id = 0
            self.leaders.clear()

    @rule(data=st.data(), n=clients)
    def the_log_refuses(self, data: st.DataObject, n: int) -> None:
        """Whatever the client does next must leave no trace in the log."""
        self.shell.failure = E.NOT_LEADER_OR_FOLLOWER
        before = len(self.shell.log)
        action = data.draw(st.sampled_from([self.join, self.sync, self.commit, self.leave]))
        if action == self.join:
            self.join(n, True, False)
        elif action == self.sync:
            self.sync(n, False)
        elif action == self.commit:
            self.commit(n, 0)
        else:
            self.leave(n, False)
        if self.shell.failure is None:
            assert len(self.shell.log) == before
        self.shell.failure = None
        if self.shell.state == "Dead":
            self.highest_generation_id = 0
            self.leaders.clear()

    @rule(is_crash=st.booleans())
    def the_coordinator_moves(self, is_crash: bool) -> None:
        """Handed over it answers everybody; in a crash connections break and nobody is answered."""
        if is_crash:
            self.asked = [pending for pending in self.asked if not pending.is_parked]
            for client in self.clients:
                client.joining = client.syncing = None
        else:
            self.shell.run(self.shell.shard.unload())
            self.settle()
        logged = self.shell.shard._logged.get(GROUP)
        self.shell.restart()
        if GROUP in self.shell.shard._groups:
            assert self.shell.generation_id == (0 if logged is None else logged.generation)
            self.highest_generation_id = self.shell.generation_id
        # A generation that never got into the log may be born again, with other members.
        self.leaders = {id_: known for id_, known in self.leaders.items() if id_ <= self.highest_generation_id}

    # --- answers -------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        for client in self.clients:
            if client.joining:
                self.joined(client, client.joining.answer)
                client.joining = None
            if client.syncing:
                self.synced(client, client.syncing.answer)
                client.syncing = None

    def joined(self, client: Client, result: JoinGroupResponse) -> None:
        if result.error_code is E.MEMBER_ID_REQUIRED:
            client.member_id = result.member_id
        elif result.error_code in (E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID):
            client.member_id = ""
        if result.error_code:
            client.generation_id, client.is_leader = -1, False
            return
        client.member_id, client.generation_id = result.member_id, result.generation_id
        client.is_leader = result.leader == result.member_id and not result.skip_assignment
        client.peers = tuple((peer.member_id, peer.group_instance_id or peer.member_id) for peer in result.members)
        if client.is_leader:
            assert result.member_id in dict(client.peers)
        else:
            assert result.skip_assignment or not result.members
        self.agree_on_leader(result)

    def agree_on_leader(self, result: JoinGroupResponse) -> None:
        """One leader in a generation; a static one may have come back under another id."""
        group = self.shell.shard._groups.get(GROUP)
        if group is None or group.generation_id != result.generation_id:
            return
        leader = group.members.get(result.leader)
        label = result.leader if leader is None else leader.group_instance_id or leader.member_id
        known = self.leaders.setdefault(result.generation_id, (label, result.protocol_name))
        if leader is not None and known[0] in (group.static_members.keys() | group.members.keys()):
            assert known == (label, result.protocol_name)

    def synced(self, client: Client, result: SyncGroupResponse) -> None:
        if result.error_code or not result.assignment:
            return
        generation, label = result.assignment.decode().split("/")
        assert label == client.synced_as
        assert int(generation) == client.synced_generation_id

    # --- invariants ----------------------------------------------------------------------------------------------

    @invariant()
    def nobody_is_answered_twice(self) -> None:
        assert all(len(pending) <= 1 for pending in self.asked)

    @invariant()
    def generations_do_not_go_back(self) -> None:
        group = self.shell.shard._groups.get(GROUP)
        if group is not None:
            assert group.generation_id >= self.highest_generation_id
            self.highest_generation_id = group.generation_id

    @invariant()
    def replaying_the_log_rebuilds_the_state(self) -> None:
        assert durable_state(self.shell.load()) == durable_state(self.shell.shard)

    @invariant()
    def offsets_are_those_acknowledged(self) -> None:
        unstable = {partition for pending in self.model.pending.values() for partition in pending}
        for partition in range(PARTITIONS):
            expected = self.model.committed.get(partition, (-1, 0))[0]
            assert self.shell.fetch(partition) == (expected, E.NONE)
            stable = (-1, E.UNSTABLE_OFFSET_COMMIT) if partition in unstable else (expected, E.NONE)
            assert self.shell.fetch(partition, stable=True) == stable

    @invariant()
    def the_books_of_the_group_are_in_order(self) -> None:
        group = self.shell.shard._groups.get(GROUP)
        if group is None:
            return
        assert set(group.static_members.values()) == {m.member_id for m in group.members.values() if m.is_static}
        assert group.awaiting_join.keys() | group.awaiting_sync.keys() | group.missing_sync <= group.members.keys()
        assert (group.leader_id in group.members) if group.members else group.leader_id is None
        assert all(count > 0 for count in group._supporters.values())
        assert group._members_bytes == sum(member.held_bytes for member in group.members.values())
        assert (group.state.value == "Empty") <= (not group.members)
        assert (not group.awaiting_join) or group.state.value == "PreparingRebalance"
        assert (not group.awaiting_sync) or group.state.value == "CompletingRebalance"

    def teardown(self) -> None:
        if not hasattr(self, "shell"):
            return
        self.shell.advance(LONGEST_WAIT_MS)
        self.settle()
        assert all(len(pending) == 1 for pending in self.asked), "somebody waits for ever"
        assert self.shell.state in ("Empty", "Dead")


GroupMachine.TestCase.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestGroupMachine = GroupMachine.TestCase
