"""One module per API key, named by its number. Each opens with its versions and its deviations from Kafka."""
