"""ex15d · Find the bug: right up to 2^31

`broken_element` returns the place of element [token, head, d] in an array of shape (tokens,
num_heads, head_dim), counted in elements from the start of the array. Somebody made it 32 bits
wide, to save registers. It passes every test, because no test has an array of more than 2^31
elements. With 32 heads of 128 that is half a million tokens, 4 GB in float16.

Write `element`, right for every array that fits into a GPU. Copy broken_element and mend it; one or
two lines change.

Called    in a kernel, with integers of any width; 0 <= token < 2^40, 0 <= head < num_heads,
          0 <= d < head_dim; num_heads and head_dim are at most 1024
Returns   an integer, exact

The grader asks for places far behind the end of any memory: an index can be checked without an
array.
"""

from numba import cuda, int32

### KIND: find the bug
### HINT 1: What is the largest int32? Which of the two lines exceeds it first, for 32 heads of 128?
### HINT 2: int32(...) cuts off the upper half of its argument: 2^31 becomes -2^31. In Numba
### HINT 2: products and sums of integers are int64 unless you write int32 around them.
### HINT 3: row = token * num_heads + head; return row * head_dim + d.
### DEBRIEF: The engine wraps as the GPU does: -2^31, and no error. The first wrong element is far
### DEBRIEF: from the start, so that small tests pass, and what is read is somebody else's memory.
### DEBRIEF: compute-sanitizer's memcheck finds it only if that memory is not allocated. An index
### DEBRIEF: function can be tested for numbers that nobody could allocate. Narrow integers are
### DEBRIEF: worth it inside of a tile: this package computes offsets in a tile in 32 bits, and the
### DEBRIEF: start of the tile in 64. tests/test_gpu_past_int32.py runs every kernel past 2^31.


@cuda.jit(device=True)
def broken_element(token, head, d, num_heads, head_dim):
    """The place of an element, up to 2^31."""
    row = int32(token * num_heads + head)
    return int32(row * head_dim + d)


@cuda.jit(device=True)
def element(token, head, d, num_heads, head_dim):
    """The place of an element, in any array."""
    ### BEGIN SOLUTION
    row = token * num_heads + head
    return row * head_dim + d
    ### END SOLUTION
