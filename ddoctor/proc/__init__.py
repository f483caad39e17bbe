"""Processes: how to end them, and the CPU and memory that they use."""
