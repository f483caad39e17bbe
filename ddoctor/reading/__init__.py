"""Reads what a run has left behind: its logs, and what tools wrote about its machine."""
