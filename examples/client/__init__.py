"""Small programs that show the client at work. Each runs by itself: `python -m examples.client.idempotent SERVERS`."""
