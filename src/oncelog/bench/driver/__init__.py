"""The processes that put on the load: `python -m oncelog.bench.driver JOB-AS-JSON`.

confluent-kafka drives every side with the same settings, so that the driver favours nobody, and it runs in a process
of its own, so that the one that compares costs nothing. A driver counts what was acknowledged and what arrived, looks
at the end of the log afterwards, and reports both numbers; it never judges itself.
"""
