"""The memory of a training step, operator by operator."""
