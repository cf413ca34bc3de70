"""What every layer shares: ids, error codes, configuration, promises, failpoints. No I/O, clock or randomness."""
