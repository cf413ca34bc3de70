"""A cluster's metadata as Kafka's controllers write it: records, the image they make, deltas and snapshots. Pure.

partition_image   one partition: replicas, in-sync replicas, leader, epochs
registrations     brokers and controllers
image             everything that the metadata log says, at one offset
replay            records to image
delta             what changed between two images
metadata_batches  bytes of the log or of a snapshot to records
image_records     image to records
checkpoint        Kafka's snapshot files
"""
