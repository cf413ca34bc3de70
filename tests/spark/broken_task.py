"""Write tasks that go wrong once."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

Writing = Callable[[Any], Any]


def breaking_once(honest: Writing, mark: str, deed: Callable[[], None]) -> Writing:
    """`write_job._writing`, but the first task that has written and got all its acknowledgements does a deed.

    The file `mark` says to the other processes that it is done. Both are pickled by value: they may import nothing of
    the tests.
    """

    def breaking(orders: Any) -> Any:
        inner = honest(orders)

        def write(batches: Any) -> Any:
            for result in inner(batches):
                if result.num_rows and not os.path.exists(mark):  # noqa: PTH110  # pickled by value: no imports
                    with open(mark, "w"):  # noqa: PTH123
                        pass
                    deed()
                yield result

        return write

    return breaking


def breaking_while_writing(honest: Writing, mark: str, deed: Callable[[], None]) -> Writing:
    """The same, but in the middle: the first task that has one record batch acknowledged and has another to write does
    the deed. The file `mark` says which partition and offset that batch has."""

    def breaking(orders: Any) -> Any:
        inner = honest(orders)

        def write(batches: Any) -> Any:
            from oncelog.client import BatchProducer
            from oncelog.spark import write_task

            producers: list[Any] = []

            class Noted(BatchProducer):
                def __init__(self, *given: Any, **more: Any) -> None:
                    super().__init__(*given, **more)
                    producers.append(self)

            def broken() -> Any:
                for number, batch in enumerate(batches):
                    if number == 1 and not os.path.exists(mark):  # noqa: PTH110  # pickled by value: no imports
                        written = producers[0].flush()[0]
                        try:
                            with open(mark, "x") as said:  # noqa: PTH123
                                said.write(f"{written.partition.partition} {written.first_offset}\n")
                        except FileExistsError:
                            pass  # another task was faster
                        else:
                            deed()
                    yield batch

            write_task.BatchProducer = Noted  # type: ignore[misc]
            try:
                yield from inner(broken())
            finally:
                write_task.BatchProducer = BatchProducer  # type: ignore[misc]

        return write

    return breaking
