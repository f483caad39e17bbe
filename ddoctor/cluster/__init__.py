"""The ranks and hosts of a probe or a recorded run: how they meet, and how rank 0 leads them."""
