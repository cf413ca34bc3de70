"""What operators ask about a live cluster: how far readers are, and what holds them back. Answered over `Admin`."""
