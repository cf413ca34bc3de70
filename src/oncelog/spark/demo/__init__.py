"""The pipeline behind `oncelog demo`: generated orders with a known truth, the Spark program, and the proof."""
