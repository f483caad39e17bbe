"""Inputs that nobody would write: whatever ddoctor reads is refused in a line, or judged.

``python -m tests.fuzz KIND --tries 100000`` tries as many; a number makes the same input again.
"""
