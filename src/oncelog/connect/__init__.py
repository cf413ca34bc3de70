"""Connectors: exactly-once between databases and the log, each a plain process on the public client.

    source              what a source of changes must offer: a position, changes behind it, a snapshot
    source_task         copies a source into topics
    postgres_source     changes of PostgreSQL's tables
    sink                what a target of records must offer: claim partitions, write a batch with its offsets
    sink_task           reads topics into a sink
    sqlite_sink         tables of SQLite
    postgres_sink       tables of PostgreSQL

The rule behind all of them: what was written and how far that is are one transaction, of the side that is written to.
A source keeps its position in the log, as a committed offset in the transaction of its records; a sink keeps the
offsets of its input in the database, next to the rows.
`errors` says which failures end a connector; after all others it starts again from what is committed.
"""
