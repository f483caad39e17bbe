"""Mistakes in a source, each with sound twins that differ in a line or two."""
