"""Observes a running training from outside, without changing it."""
