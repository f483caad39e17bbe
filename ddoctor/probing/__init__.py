"""The inside of a probe, and the processes that run it."""
