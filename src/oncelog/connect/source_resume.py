"""Whether a source may go on where it stopped: decided from what is stored and how the server is, without I/O."""

from __future__ import annotations

from typing import NamedTuple

from oncelog.connect.errors import Refused
from oncelog.connect.pgoutput import lsn_text
from oncelog.connect.source import Note, Resume, Stored


class Slot(NamedTuple):
    confirmed_lsn: int
    wal_status: str
    """reserved, extended, unreserved or lost."""


class Server(NamedTuple):
    """The database server as it is now."""

    system: str
    timeline: int
    wal_lsn: int
    slot: Slot | None


def decide(name: str, slot_name: str, stored: Stored | None, server: Server, accepted_timeline: int = 0) -> Resume:
    """Raises Refused, which says what does not fit and what to do."""
    again = (
        f"For a new snapshot: drop the slot if it is there (select pg_drop_replication_slot('{slot_name}')), delete "
        f"the stored position (oncelog group delete connect-{name}), and start again"
    )
    if stored is None:
        return _first(name, slot_name, server, again)
    note, slot = stored.note, server.slot
    if note.slot != slot_name:
        raise Refused(f"the stored position belongs to the slot {note.slot}, and the settings say {slot_name}. {again}")
    if note.system != server.system:
        raise Refused(
            f"this is another server: its system identifier is {server.system}, and the stored position belongs to "
            f"{note.system}. {again}"
        )
    if server.timeline not in (note.timeline, accepted_timeline):
        raise Refused(
            f"the server is on timeline {server.timeline}, and the stored position is of timeline {note.timeline}: it "
            "was promoted or restored, and may have lost or changed what was read. If the slot was synchronised and "
            f"nothing was lost, set accept_timeline = {server.timeline}. {again}"
        )
    if server.wal_lsn < stored.position:
        raise Refused(
            f"the server's log ends at {lsn_text(server.wal_lsn)}, before the stored position "
            f"{lsn_text(stored.position)}: it was restored from a backup. {again}"
        )
    if note.is_snapshot:
        return Resume(note._replace(generation=note.generation + 1, timeline=server.timeline))
    if slot is None:
        raise Refused(
            f"the replication slot {slot_name} is gone: what was committed after {lsn_text(stored.position)} cannot be "
            f"read any more. {again}"
        )
    check_slot(slot_name, slot, again)
    if slot.confirmed_lsn > stored.position:
        raise Refused(
            f"the replication slot {slot_name} is at {lsn_text(slot.confirmed_lsn)}, but only what was before "
            f"{lsn_text(stored.position)} is in the log: somebody else has moved it. {again}"
        )
    return Resume(None)


def check_slot(slot_name: str, slot: Slot, again: str = "") -> None:
    """Raises Refused if the server has removed what the slot needs."""
    if slot.wal_status == "lost":
        raise Refused(
            f"the server has removed log that the slot {slot_name} needs (max_slot_wal_keep_size). {again}"
            " Give the server more room for it"
        )


def _first(name: str, slot_name: str, server: Server, again: str) -> Resume:
    if server.slot is not None:
        raise Refused(
            f"there is a replication slot {slot_name} at {lsn_text(server.slot.confirmed_lsn)}, but no stored position "
            f"of {name}: it was deleted, has expired, or the slot belongs to something else. {again}"
        )
    return Resume(Note(server.system, server.timeline, slot_name, 1, True))
