"""What was seen: typed, frozen sections, a module per family, and the bundle that carries them."""
