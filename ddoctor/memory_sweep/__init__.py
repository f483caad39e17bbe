"""How many samples of a training fit a device: the search, and the steps that are tried."""
