"""`ddoctor.probe run`: the user's own script under observation, on every rank, to its end."""
