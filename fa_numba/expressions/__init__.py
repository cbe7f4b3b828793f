"""Functions that the user writes, a mask or a score, read as expressions.

trace          a Python function becomes a tree of nodes, by running it on symbols
nodes          the tree, and its constants folded
intervals      the values that an expression can have when its variables lie in intervals
ranges         the least and greatest number in any range of an array
tiles          hidden, mixed and whole tiles of a mask, and their runs
derivative     the derivative of a score
source         an expression as the text of a Python function
functions      an expression as a device function of a kernel
mask_function  a mask with its arguments, which &, | and ~ combine
given          all that a call was given, causal and softcap too, as one mask and one score
"""
