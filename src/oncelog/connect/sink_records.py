"""Records of a batch as columns: making objects of all of them would be most of the work of a sink."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, overload

from oncelog.client import ConsumerRecord, TopicPartition


class RecordColumns(Sequence[ConsumerRecord]):
    """Over a RecordBatch or a Table of Arrow with the columns of `Consumer.poll_columns`."""

    def __init__(self, columns: Any) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    @overload
    def __getitem__(self, at: int) -> ConsumerRecord: ...
    @overload
    def __getitem__(self, at: slice) -> RecordColumns: ...
    def __getitem__(self, at: int | slice) -> ConsumerRecord | RecordColumns:
        if isinstance(at, slice):
            start, stop, _ = at.indices(len(self))
            return RecordColumns(self.columns.slice(start, stop - start))
        return self._records[at]

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return iter(self._records)

    @cached_property
    def _records(self) -> list[ConsumerRecord]:
        names = ("topic", "partition", "offset", "timestampType", "key", "value", "headers")
        topic, partition, offset, time_type, key, value, headers = (self._list(name) for name in names)
        pairs = (tuple((header["key"], header["value"]) for header in found or ()) for found in headers)
        rows = zip(topic, partition, offset, self._times_ms(), time_type, key, value, pairs, strict=True)
        return [ConsumerRecord._make((*row, -1)) for row in rows]

    @cached_property
    def values(self) -> list[bytes | None]:
        return self._list("value")

    def _times_ms(self) -> list[int]:
        """Times as numbers: they may be beyond the years that Python's calendar has."""
        import pyarrow as pa

        return [time_us // 1000 for time_us in self.columns.column("timestamp").cast(pa.int64()).to_pylist()]

    def _list(self, name: str) -> list[Any]:
        return self.columns.column(name).to_pylist()  # type: ignore[no-any-return]

    def by_topic(self) -> dict[str, RecordColumns]:
        import pyarrow.compute as pc

        column = self.columns.column("topic")
        topics = [topic.as_py() for topic in column.unique()]
        if len(topics) == 1:
            return {topics[0]: self}
        return {topic: RecordColumns(self.columns.filter(pc.equal(column, topic))) for topic in topics}

    def have_header(self, name: str) -> bool:
        """Whether one of them has it."""
        import pyarrow.compute as pc

        names = pc.struct_field(pc.list_flatten(self.columns.column("headers")), "key")
        return pc.any(pc.equal(names, name)).as_py() is True

    def first_offsets(self) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        groups = _table(self.columns).group_by(["topic", "partition"]).aggregate([("offset", "min")])
        places = zip(*(groups.column(name).to_pylist() for name in ("topic", "partition", "offset_min")), strict=True)
        return {TopicPartition(topic, partition): offset for topic, partition, offset in places}


def joined(parts: Sequence[RecordColumns]) -> RecordColumns:
    import pyarrow as pa

    return RecordColumns(pa.concat_tables([_table(part.columns) for part in parts]))


def _table(columns: Any) -> Any:
    import pyarrow as pa

    return columns if isinstance(columns, pa.Table) else pa.Table.from_batches([columns])
