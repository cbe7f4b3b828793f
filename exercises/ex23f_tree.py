"""ex23f · A tree of guesses: who sees whom, and which path stays

A draft may offer several guesses of one token: a tree. Node 0 is the last token of the text, and
the guesses are nodes 1, 2, ...; a node has a larger number than its parent. One pass of the model
has given the most likely next token after each node. In that pass a node must see its ancestors and
itself, and no other node: that is a word of 64 bits. Write the kernel that finds the words, and the
path of guesses that stays.

words   bit u of words[b, t] is 1 if node u is node t or one of its ancestors
path    a guess is right if it is the token that follows its parent. From node 0 the path goes to
        the right guess among the children, as long as there is one. Bit u of path[b] is 1 if node
        u is on the path; bit 0 always is. Two children of a node are never the same token
token   the token that follows the last node of the path

launch   kernel[batch, 64](num_nodes, parents, tokens, following, words, path, token): a thread
         block for each request
arrays   num_nodes (batch,) int32, from 1 to max_nodes <= 64
         parents, tokens, following (batch, max_nodes) int32; parents[b, 0] = -1. Past num_nodes
         they hold anything
         words (batch, max_nodes), path (batch,) uint64; words past num_nodes are as they were
         token (batch,) int32
HBM      tokens once per node at most; each word, path and token stored once

About 18 lines. uint64(1) << uint64(u) is bit u; cuda.atomic.max(array, 0, t) makes array[0] the
largest t of all threads.
"""

from numba import cuda, int32, uint64

NODES = 64


@cuda.jit
def kernel(num_nodes, parents, tokens, following, words, path, token):
    """The words of a tree, its path and the next token, a thread block for each request."""
    wrong = cuda.shared.array(NODES, int32)
    last = cuda.shared.array(1, int32)
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    # YOUR CODE HERE
    raise NotImplementedError("ex23f: kernel")


# Stub 8a61d739 of solutions/ex23f_tree.py: `fa-numba reset ex23f` brings it back.
