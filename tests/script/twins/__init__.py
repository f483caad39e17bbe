"""Mistakes in a source, each with a sound twin that differs in a line or two."""
