"""Probes that end badly, named by their modules; and one that does not."""
