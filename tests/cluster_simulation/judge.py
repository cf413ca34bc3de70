"""The promises, and who keeps watch over them.

log-matching            below their high watermarks two replicas have the same batches, byte by byte
leader-completeness     an elected leader has everything that leaders of earlier epochs have committed
candidate-completeness  so has every running member of the controller's ISR and ELR, who may be elected next
quorum-superset         whom the newest leader counts as in sync includes whom the controller does
in-sync-members         no fenced broker is in the ISR; ISR and ELR are replicas, and apart; with enough in sync no ELR
one-leader-per-epoch    in a leader epoch one broker appends; epochs in a log never go back and fit its epoch file
high-watermark          it never goes back on a leader, and LSO <= high watermark <= end; a follower does not commit;
                        the end that a leader tells clients is not below those that leaders of earlier epochs told
acknowledged-is-kept    what was acknowledged to acks=all is where it was acknowledged, in the end on all replicas
repeatable-read         what could be read at an offset of a replica stays there
read-committed          what a replica shows below its last stable offset is decided there, and as aborted if it was;
                        that offset goes back only when the log is cut
producer-state-equal    equal logs have equal producers, open transactions and aborted transactions
no-duplicate-no-gap     the sequences of each producer and epoch are in the log once, and one after the other
liveness                when all is healed, all is acknowledged, all replicas are in sync and have the same end
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from oncelog.cluster.partition_state import PartitionState
from oncelog.protocol.batch import BatchHeader, decode_records, iter_headers, parse_control
from oncelog.storage.log import Log

if TYPE_CHECKING:
    from tests.cluster_simulation.broker import Process
    from tests.cluster_simulation.controller import Controller


class PromiseBroken(Exception):
    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


def batches_between(log: Log, start: int, end: int) -> dict[int, tuple[BatchHeader, bytes]]:
    """By base offset: all batches with an offset in the range."""
    found: dict[int, tuple[BatchHeader, bytes]] = {}
    offset = max(start, log.log_start_offset)
    while offset < end:
        data = bytes(log.read(offset, 1 << 20, end_offset=log.log_end_offset).data)
        for position, header in iter_headers(data):
            if header.base_offset < end:
                found[header.base_offset] = header, data[position : position + header.size_bytes]
            offset = header.next_offset
        if not data:
            break
    return found


class Judge:
    def __init__(self) -> None:
        self.committed: dict[int, tuple[BatchHeader, bytes]] = {}
        self._committed_in: dict[int, int] = {}
        """Under which leader epoch it was committed first."""
        self.end = 0
        """The highest high watermark that any leader has had."""
        self.acknowledged: dict[int, bytes] = {}
        self.truncations = 0
        self._judged_state: PartitionState | None = None
        """Candidates are compared when the state has changed, which is seldom enough."""
        self._leaders: dict[int, int] = {}
        self._high_watermarks: dict[tuple[int, int], int] = {}
        self._told: dict[int, int] = {}
        """The end that clients could be told of, by leader epoch."""

    # As it goes on

    def on_append(self, broker: int, epoch: int) -> None:
        if self._leaders.setdefault(epoch, broker) != broker:
            raise PromiseBroken("one-leader-per-epoch", f"{broker} and {self._leaders[epoch]} append in {epoch}")

    def on_acknowledged(self, offset: int, value: bytes) -> None:
        self.acknowledged[offset] = value
        if value not in self._values(offset):
            raise PromiseBroken("acknowledged-is-kept", f"{value!r} was acknowledged, but is not at offset {offset}")

    def _values(self, offset: int) -> list[bytes | None]:
        if offset not in self.committed:
            return []
        return [record.value for record in decode_records(self.committed[offset][1])]

    def on_elected(self, process: Process) -> None:
        partition = process.partition
        assert partition is not None
        for base in self._missing(process):
            if self._committed_in[base] < partition.leader_epoch:
                text = (
                    f"broker {process.node} leads epoch {partition.leader_epoch} without what was committed at {base}"
                )
                raise PromiseBroken("leader-completeness", f"{text} in epoch {self._committed_in[base]}")

    def _missing(self, process: Process) -> list[int]:
        """Where a replica lacks what was committed."""
        log = process.log
        found = batches_between(log, 0, log.log_end_offset)
        return [
            base
            for base, (header, data) in self.committed.items()
            if header.last_offset >= log.log_start_offset and (base not in found or found[base][1] != data)
        ]

    def observe_metadata(self, controller: Controller, processes: list[Process]) -> None:
        """After every event at the controller."""
        state, elr = controller.state, controller.elr
        in_sync = set(state.in_sync)
        fenced = [node for node in in_sync if node in controller.brokers and controller.brokers[node].is_fenced]
        is_enough = len(in_sync) >= controller.min_isr
        if fenced or in_sync & elr or not in_sync | elr <= set(state.replicas) or (is_enough and elr):
            raise PromiseBroken("in-sync-members", f"ISR {in_sync}, ELR {elr}, fenced {fenced}")
        for process in processes:
            partition = process.partition
            if partition is None:
                continue
            replicas = partition.replicas
            if replicas is not None and partition.leader_epoch == state.leader_epoch:
                counted = in_sync | (elr if len(replicas.state.in_sync) >= controller.min_isr else set())
                if not replicas.maximal_isr >= counted:
                    text = f"leader {process.node} counts {set(replicas.maximal_isr)}, the controller {counted}"
                    raise PromiseBroken("quorum-superset", text)
            if process.node in in_sync | elr and state is not self._judged_state and self._missing(process):
                text = f"broker {process.node} may be elected, and lacks what is at {self._missing(process)[0]}"
                raise PromiseBroken("candidate-completeness", text)
        self._judged_state = state

    def observe(self, process: Process) -> None:
        """After every event on a broker."""
        partition = process.partition
        if partition is None:
            return
        high_watermark, log = partition.high_watermark, partition.log
        is_cut = log.log_end_offset < process.seen_end
        self.truncations += is_cut
        process.seen_end = log.log_end_offset
        process.lowest_end = min(process.lowest_end, log.log_end_offset)
        if not partition.last_stable_offset <= high_watermark <= log.log_end_offset:
            raise PromiseBroken("high-watermark", f"{partition.last_stable_offset} {high_watermark} {log}")
        if high_watermark < process.shown_end:
            text = f"broker {process.node} showed offset {process.shown_end - 1}, and ends with {high_watermark - 1}"
            raise PromiseBroken("repeatable-read", text)
        if partition.is_leader:
            key = process.incarnation, partition.leader_epoch
            if high_watermark < self._high_watermarks.get(key, 0):
                raise PromiseBroken("high-watermark", f"broker {process.node} went back to {high_watermark}")
            self._high_watermarks[key] = high_watermark
            if partition.knows_committed:
                self._tell_end(process, partition.leader_epoch, high_watermark)
        if high_watermark > process.shown_end:
            self._compare(process, process.shown_end, high_watermark)
            process.shown_end = high_watermark
        stable = partition.last_stable_offset
        if is_cut:
            process.stable_end = min(process.stable_end, stable)  # as in Kafka: see `_check_stable`
        if stable < process.stable_end:
            text = f"broker {process.node} was stable up to {process.stable_end}, and now up to {stable}"
            raise PromiseBroken("read-committed", text)
        if stable > process.stable_end:
            self._check_stable(process, process.stable_end, stable)
            process.stable_end = stable

    def _tell_end(self, process: Process, epoch: int, end: int) -> None:
        """As ListOffsets does, which has clients wait on a leader that does not know yet what is committed."""
        told = max((before for earlier, before in self._told.items() if earlier < epoch), default=0)
        if end < told:
            text = f"broker {process.node} tells the end {end} in epoch {epoch}, and an earlier leader told {told}"
            raise PromiseBroken("high-watermark", text)
        self._told[epoch] = max(end, self._told.get(epoch, 0))

    def _compare(self, process: Process, start: int, end: int) -> None:
        partition = process.partition
        assert partition is not None
        if end > self.end and not partition.is_leader:
            raise PromiseBroken("high-watermark", f"follower {process.node} commits {end}, a leader only {self.end}")
        for base, (header, data) in batches_between(partition.log, start, end).items():
            known = self.committed.get(base)
            if known is None:
                self._check_new(base, header)
                self.committed[base] = header, data
                self._committed_in[base] = partition.leader_epoch
            elif known[1] != data:
                text = f"broker {process.node} shows another batch at {base}: epoch {header.leader_epoch}, "
                raise PromiseBroken("log-matching", f"{text}before {known[0].leader_epoch}")
            if header.leader_epoch != partition.log.leader_epochs.epoch_for_offset(
                max(base, partition.log_start_offset)
            ):
                raise PromiseBroken("one-leader-per-epoch", f"broker {process.node} has no epoch for offset {base}")
        self.end = max(self.end, end)

    def _check_stable(self, process: Process, start: int, end: int) -> None:
        """What a consumer with read_committed gets there, and takes for aborted or not.

        A replica that has started need not know that a marker in its log is not committed yet. What a marker says was
        decided before.
        """
        shown = [
            header
            for header, _ in batches_between(process.log, start, end).values()
            if header.is_transactional and not header.is_control
        ]
        if not shown:
            return
        later = batches_between(process.log, start, process.log.log_end_offset).values()
        markers = [(header, parse_control(data).is_abort) for header, data in later if header.is_control]
        for header in shown:
            ends = [
                is_abort
                for marker, is_abort in markers
                if marker.producer_id == header.producer_id and marker.base_offset > header.base_offset
            ]
            if not ends:
                text = f"broker {process.node} shows {header.base_offset}, which is not decided"
                raise PromiseBroken("read-committed", text)
            is_shown_as_aborted = any(
                each.producer_id == header.producer_id and each.first_offset <= header.last_offset <= each.last_offset
                for each in process.log.aborted_transactions(header.base_offset, end)
            )
            if ends[0] is not is_shown_as_aborted:
                text = f"broker {process.node}, offset {header.base_offset}: aborted {ends[0]}, shown the other way"
                raise PromiseBroken("read-committed", text)

    def _check_new(self, base: int, header: BatchHeader) -> None:
        if not self.committed:
            return
        last = self.committed[max(self.committed)][0]
        if base < last.next_offset:
            raise PromiseBroken("log-matching", f"a batch at {base} was committed after {last.last_offset}")
        if header.leader_epoch < last.leader_epoch:
            raise PromiseBroken("one-leader-per-epoch", f"epoch {header.leader_epoch} follows {last.leader_epoch}")

    def compare_states(self, processes: list[Process]) -> int:
        """Of running replicas. Returns how many pairs were worth comparing."""
        pairs = 0
        known = [(process.node, Knowledge(process.log)) for process in processes if process.partition is not None]
        for number, (first, one) in enumerate(known):
            for second, other in known[number + 1 :]:
                if one.start == other.start and one.data == other.data:
                    pairs += 1
                    if not one.agrees_with(other):
                        text = f"{first}: {one.__dict__}, {second}: {other.__dict__}"
                        raise PromiseBroken("producer-state-equal", text)
        return pairs

    # In the end

    def check_end(self, processes: list[Process]) -> None:
        self.compare_states(processes)
        for process in processes:
            assert process.partition is not None
            log = process.partition.log
            found = batches_between(log, 0, log.log_end_offset)
            for offset, value in self.acknowledged.items():
                if offset < log.log_start_offset:
                    continue
                values = [record.value for record in decode_records(found[offset][1])] if offset in found else []
                if value not in values:
                    raise PromiseBroken("acknowledged-is-kept", f"broker {process.node} lacks {value!r} at {offset}")
        self._check_sequences()

    def _check_sequences(self) -> None:
        sequences: dict[tuple[int, int], list[int]] = defaultdict(list)
        for _, (header, _) in sorted(self.committed.items()):
            if header.producer_id >= 0 and not header.is_control:
                sequences[header.producer_id, header.producer_epoch].append(header.base_sequence)
        for producer, found in sequences.items():
            if found != list(range(len(found))):
                raise PromiseBroken("no-duplicate-no-gap", f"producer {producer} has sequences {found}")


class Knowledge:
    """What follows from the bytes of a log."""

    def __init__(self, log: Log) -> None:
        state = log.producer_state
        self.start = log.log_start_offset
        self.data = b"".join(data for _, data in batches_between(log, 0, log.log_end_offset).values())
        self.producers = {
            status.producer_id: (status.epoch, status.last_sequence, status.coordinator_epoch, status.txn_first_offset)
            for status in state.active_producers()
        }
        self.first_undecided = state.first_undecided_offset
        self.aborted = {each.last_offset: each for each in log.aborted_transactions(self.start, log.log_end_offset)}

    def agrees_with(self, other: Knowledge) -> bool:
        """A replica that began at the log start of its leader cannot know what was written below it."""
        if self.start == 0:
            return (self.producers, self.first_undecided, self.aborted) == (
                other.producers,
                other.first_undecided,
                other.aborted,
            )
        both = self.producers.keys() & other.producers.keys()
        return self._aborted_above(other) == other._aborted_above(self) and all(
            self.producers[pid][:2] == other.producers[pid][:2] for pid in both
        )

    def _aborted_above(self, other: Knowledge) -> set[tuple[int, int, int]]:
        below = {
            last
            for each in (self.aborted, other.aborted)
            for last, txn in each.items()
            if txn.first_offset < self.start
        }
        return {(txn.producer_id, txn.first_offset, last) for last, txn in self.aborted.items() if last not in below}
