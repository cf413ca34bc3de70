"""What operators ask about a live cluster, answered over `Admin`, for commands and consoles alike.

    offsets, groups                   how far partitions go, and how far groups are behind
    positions, offset_reset           offsets by name, number or time, and where a reset would put a group
    transactions, open_transactions   what coordinators know, what partitions know, who holds readers back, what hangs
    transaction_history               the events of a transactional id, or of all from now on
    transaction_activity              rates and what is open, from events
    timeline, transaction_spans       the transactions of a range of offsets, and records that are still to be read
    pipelines                         what each micro-batch of an exactly-once sink did, attempt by attempt
    topics, brokers, producers        the rest of a cluster
    snapshot                          everything at one moment, again and again, with a bounded number of requests

Results are frozen dataclasses; `as_row` gives the same as JSON values. Functions called `join_*` ask nobody.
"""
