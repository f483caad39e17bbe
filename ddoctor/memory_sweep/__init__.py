"""Finds the largest micro-batch that fits a device, by trial steps."""
