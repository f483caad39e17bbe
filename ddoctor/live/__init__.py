"""A training that runs, looked at from outside."""
