"""Drawings, one file each: a function that returns a matplotlib Figure, and `describe`, its text.

What they show is counted by the engine or taken from the device table, never typed in by hand.
"""
