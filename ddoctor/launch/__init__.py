"""Reads what a launch command would start: its line, its scripts and its files; nothing runs."""
