"""Histories of a replicated partition: brokers, a controller, clients and faults on a virtual clock, from a seed.

Theory of operation
-------------------
Three brokers keep one partition. Each is made of the broker's own parts (`cluster.partition`, `cluster.follower`,
`cluster.replicas`, `cluster.isr_changes`, `storage.log` on real files); what connects them is simulated. `network`
loses, delays and reorders messages. `controller` is a script that does what Apache Kafka's controllers do: it registers
and fences brokers, elects leaders from the ISR or the ELR, and accepts or refuses AlterPartition. `clients` write with
and without transactions and repeat what was not acknowledged. `history` kills, pauses and cuts off brokers, takes their
power away, stops them in order, moves the leadership and replicas, deletes records, and heals everything in the end.

After every event `judge` compares what replicas show. The promises have names, see there.

A power cut takes everything from some place above the durable offset on. In histories with fsync it may meet any broker
at any time; in the others as many brokers as Kafka promises to survive, which is one less than `min.insync.replicas`,
until the broker is in sync again.

    python -m tests.cluster_simulation --from-seed 1 --count 200
"""
