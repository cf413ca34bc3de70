"""Data folders read offline: what is in every file, where something is, which transactions there were, what is damaged.

    layout          which file is what
    batch_file      the batches of a `.log` file, streamed
    entries         indexes, snapshots, checkpoints and small files, as rows
    internal_topics records of `__transaction_state`, `__consumer_offsets` and `__cluster_metadata` as objects
    transactions    transactions as spans over offsets, the last stable offset, aborted ranges
    search          where an offset, a time, a key or a producer is
    kafka_dump      the lines that Apache Kafka's DumpLogSegments prints
    verification    all invariants between the files of a folder

Nothing here writes, locks or repairs: files are opened for reading only, so a folder can be looked at while a broker
uses it, and a damaged one is not changed.
"""
