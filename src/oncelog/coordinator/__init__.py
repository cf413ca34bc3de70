"""Pure state machines of the transaction and the group coordinator: decide, log, apply."""
