"""ex14b · A scale for each block of rows

Before it is rounded to e4m3, a matrix is divided by a scale, so that its largest number becomes
448; afterwards it is multiplied by it again. Give each block of rows a scale of its own.

quantise(x, block_rows)            given: calls scale_of for each block of rows. Returns x8, the
                                   e4m3 numbers (as float64), and the scales, one for each block
scale_of(block)                    the scale of some rows, a positive float; 1.0 if all are zeros
dequantise(x8, scales, block_rows) what x8 stands for: each row times the scale of its block

x is (rows, columns); the last block may have fewer rows. round_e4m3 is given, and saturates: beyond
448 it returns 448. 2 lines and 1.
"""

import numpy as np

E4M3_MAX = 448.0

### KIND: fill a line
### HINT 1: Which number has to become 448? Signs do not matter, and one division gives the scale.
### HINT 2: np.abs(block).max() / 448, but zeros need a scale, too: 0 / 0 is NaN. Row r belongs to
### HINT 2: block r // block_rows.
### HINT 3: largest = np.abs(block).max(); return largest / 448 if largest > 0 else 1.0. Then
### HINT 3: x8 * scales[np.arange(len(x8)) // block_rows, None].
### DEBRIEF: A tile of K has one scale then, which enters softmax_scale: it costs nothing. Of V it
### DEBRIEF: is harder, since P V adds up tiles of different scales: that is ex14c. An outlier
### DEBRIEF: coarsens the numbers of its own block alone; how little that helps with floats, you
### DEBRIEF: see below.


def round_e4m3(x):
    """The nearest e4m3 numbers; beyond the largest, the largest."""
    _, exponent = np.frexp(x)
    step = 2.0 ** (np.maximum(exponent - 1, -6) - 3)
    return np.clip(np.round(x / step) * step, -E4M3_MAX, E4M3_MAX)


def quantise(x, block_rows):
    """x in e4m3 with a scale for each block of rows: x8, scales."""
    x8, scales = np.empty(x.shape), []
    for start in range(0, len(x), block_rows):
        block = x[start : start + block_rows]
        scales.append(scale_of(block))
        x8[start : start + block_rows] = round_e4m3(block / scales[-1])
    return x8, np.array(scales)


def scale_of(block):
    """The scale of these rows: largest absolute value / 448."""
    ### BEGIN SOLUTION
    largest = np.abs(block).max()
    return float(largest) / E4M3_MAX if largest > 0 else 1.0
    ### END SOLUTION


def dequantise(x8, scales, block_rows):
    """What the e4m3 numbers stand for."""
    ### BEGIN SOLUTION
    return x8 * scales[np.arange(len(x8)) // block_rows, None]
    ### END SOLUTION
