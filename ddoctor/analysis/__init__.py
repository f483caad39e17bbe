"""Pure functions from sections to what several checks need: who is late, what is slow."""
