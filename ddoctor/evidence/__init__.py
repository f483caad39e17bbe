"""Evidence: typed, frozen sections, one module per family, and the bundle that stores them."""
