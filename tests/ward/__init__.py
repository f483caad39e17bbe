"""Ordinary training scripts, each with one real fault or with none, and what is told of them."""
