"""Reads the source of a training script, without running it, for `ddoctor doctor -- COMMAND`."""
