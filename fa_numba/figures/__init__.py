"""Drawings, one per file, made from traces and from analysis, never from typed-in numbers.

The function of a file returns a `style.Drawing`.
"""
