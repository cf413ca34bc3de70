"""The messages of the protocol, one module per API, and the schemas of what the internal topics hold."""
