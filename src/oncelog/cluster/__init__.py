"""What a broker knows of the cluster: topics and settings (metadata store), and the partitions it leads."""
