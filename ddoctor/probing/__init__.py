"""Run probes: process group, timing and journal of the processes that measure."""
