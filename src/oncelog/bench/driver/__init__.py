"""The processes that make the load: `python -m oncelog.bench.driver JOB-AS-JSON`.

confluent-kafka drives every side with the same settings. It runs in a separate process, so that the comparing process
costs nothing. A driver counts what was acknowledged and what arrived, looks at the end of the log afterwards, and
reports both numbers; the comparing process judges them.
"""
