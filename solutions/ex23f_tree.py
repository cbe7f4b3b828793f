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

### KIND: write
### HINT 1: Thread t has node t. Its word is found on the way up: from t to its parent, and so on to
### HINT 1: node 0. On which nodes of that way does it depend whether t is on the path?
### HINT 2: A node is on the path if no guess on its way up is wrong. So first each thread says in
### HINT 2: shared memory whether its own guess is wrong. The path has a larger number at each step:
### HINT 2: its last node is the largest t of those that are on it.
### HINT 3: wrong[t] = t > 0 and tokens[b, t] != following[b, parents[b, t]]; barrier; at = t, and
### HINT 3: while at >= 0: word |= bit at, stays is false if wrong[at], at = parents[b, at]; if
### HINT 3: stays: atomic.max(last, 0, t); barrier; if t == last[0]: path[b] is its own word.
### DEBRIEF: The path is a word, too: that of its last node. The words are the mask of the pass that
### DEBRIEF: verifies: in fa_numba a tree of 64 nodes is 512 bytes, and the mask reads one bit of
### DEBRIEF: them. With a chain this is the loop of ex23e at temperature 0. At a higher temperature
### DEBRIEF: several children need a rule of their own: each in turn is kept with min(1, p/q), and
### DEBRIEF: after a refusal p becomes max(p - q, 0), divided by its sum. Source: Miao et al. 2023,
### DEBRIEF: SpecInfer, arXiv:2305.09781.


@cuda.jit
def kernel(num_nodes, parents, tokens, following, words, path, token):
    """The words of a tree, its path and the next token, a thread block for each request."""
    wrong = cuda.shared.array(NODES, int32)
    last = cuda.shared.array(1, int32)
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    ### BEGIN SOLUTION
    n = num_nodes[b]
    if t == 0:
        last[0] = 0
    wrong[t] = 0
    if 0 < t < n and tokens[b, t] != following[b, parents[b, t]]:
        wrong[t] = 1
    cuda.syncthreads()  # wrong and last are complete: safe to read
    word, stays, at = uint64(0), t < n, t
    while t < n and at >= 0:
        word |= uint64(1) << uint64(at)
        if wrong[at]:
            stays = False
        at = parents[b, at]
    if t < n:
        words[b, t] = word
    if stays:
        cuda.atomic.max(last, 0, t)
    cuda.syncthreads()  # last is the largest of all
    if t == last[0]:
        path[b] = word
        token[b] = following[b, t]
    ### END SOLUTION
