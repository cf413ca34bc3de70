"""One module per API key, named by its number; a new one is served as soon as it is here. Each opens with its versions
and its deviations from Kafka.
"""
