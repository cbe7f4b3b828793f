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


@cuda.jit(device=True)
def broken_element(token, head, d, num_heads, head_dim):
    """The place of an element, up to 2^31."""
    row = int32(token * num_heads + head)
    return int32(row * head_dim + d)


@cuda.jit(device=True)
def element(token, head, d, num_heads, head_dim):
    """The place of an element, in any array."""
    # YOUR CODE HERE
    raise NotImplementedError("ex15d: element")


# Stub a2bb39b8 of solutions/ex15d_large_arrays.py: `fa-numba reset ex15d` brings it back.
