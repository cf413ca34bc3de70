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
    """The same, but in the middle: the first task that has sent one record batch and has another does the deed."""

    def breaking(orders: Any) -> Any:
        inner = honest(orders)

        def broken(batches: Any) -> Any:
            from oncelog.client import batch_producer

            batch_producer.SENT_TOGETHER_BYTES = 1
            for number, batch in enumerate(batches):
                if number == 1 and not os.path.exists(mark):  # noqa: PTH110  # pickled by value: no imports
                    with open(mark, "w"):  # noqa: PTH123
                        pass
                    deed()
                yield batch

        return lambda batches: inner(broken(batches))

    return breaking
