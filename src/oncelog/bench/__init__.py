"""Measuring Kafka-compatible clusters, side by side.

    workload.py     what is measured, as data            catalogue.py    the suite: groups of workloads and their goals
    metric.py       the figures a workload yields        measurement.py  what one round saw, and if it may be trusted
    driver/         the processes that make the load     cells/          one workload on one side, round by round
    side.py         a cluster, ours to start or not      rounds.py       sides in turn, all rounds kept
    results.py      results as JSON, parts merged        comparison.py   medians, ratios, goals, growth
    render/         terminal, Markdown, plots            profiling.py    a broker under a sampling profiler
    interruption.py Ctrl-C and SIGTERM, in order

Data flows one way: a catalogue is run by `rounds` into `results`, and everything that is shown is computed from those.
"""
