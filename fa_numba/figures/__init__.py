"""Drawings, one per file; each is made from a trace or from analysis, never from typed-in numbers."""
