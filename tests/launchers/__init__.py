"""The launchers that people use, as they use them."""
