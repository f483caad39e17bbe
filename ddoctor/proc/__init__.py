"""Processes: how they are ended, and what they use."""
