"""The microscope: one report on everything that a launch did.

report     the report: traffic, bank conflicts, races, occupancy, machine code
command    `fa-numba trace`
magic      `%%trace` in a notebook
"""
