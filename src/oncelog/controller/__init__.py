"""A cluster's metadata as Kafka's controllers write it, and the controller that decides it. Pure.

The metadata:

partition_image   one partition: replicas, in-sync replicas, leader, epochs
registrations     brokers and controllers
image             everything that the metadata log says, at one offset
replay            records to image
delta             what changed between two images
metadata_batches  bytes of the log or of a snapshot to records
image_records     image to records
checkpoint        Kafka's snapshot files

The controller, whose every decision is records and an answer:

machine           what is committed and requests in, records and answers out
view              what decisions look at
partition_change  leader, in-sync replicas and replicas of a partition: the rules of elections
registration, heartbeats, broker_changes                  brokers come, go and shut down
in_sync_changes, leader_elections, reassignments          what leaders and administrators ask for
directory_assignments                                     where brokers with several directories keep replicas
topic_changes, topic_rules, assignments, placement        topics, and where their replicas go
config_changes, feature_changes, producer_id_blocks       settings, levels of features, blocks of producer ids
quota_changes, scram_changes, acl_changes                 kept for brokers, which act on them
"""
