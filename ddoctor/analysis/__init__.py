"""Pure functions that turn sections into what several checks need, such as stragglers or slow
links.
"""
