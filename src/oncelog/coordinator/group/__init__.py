"""The group coordinator: classic groups and their offsets, as a pure state machine over `__consumer_offsets`."""
