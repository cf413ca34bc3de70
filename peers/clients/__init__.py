"""Other clients as drivers of the benchmark's transactions: what it shows of a broker depends on who asks."""
