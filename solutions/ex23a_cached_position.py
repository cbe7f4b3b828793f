"""ex23a · Find the bug: fluent, and not the model's text

A server reads the tokens of its sequences in steps: the prompt in one or several chunks, then each
token of the answer. The first num_cached[b] tokens of sequence b have been read in earlier steps;
their keys and values are in the pages. In this step it has some new tokens. The step of the whole
batch is one flat array of new tokens: those of sequence b are starts[b] .. starts[b + 1] - 1. A
kernel computes what the model needs:

    positions   (new tokens,) int32: the position of each new token in its sequence, from 0; the
                rotary embedding turns its query and its key by it
    slots       (new tokens,) int32: where its key and value go: token t of sequence b into page
                block_table[b, t // page_size], offset t % page_size; slot = page * page_size +
                offset
    seq_lens    (batch,) int32: the number of keys that the last new token sees, its own included

`broken_kernel` below reads a whole prompt rightly, and the first token of each answer is right. The
rest of the text reads well, but it is not what the model says to the same tokens in one pass.

Write `kernel`: copy broken_kernel and mend it. One or two lines change.

launch   kernel[batch, NUM_THREADS](starts, num_cached, block_table, positions, slots, seq_lens,
         page_size): a thread block for each sequence
arrays   starts (batch + 1,), num_cached (batch,), block_table (batch, max_pages), all int32. A
         sequence may have 0 new tokens: then its seq_len is num_cached
"""

from numba import cuda

NUM_THREADS = 64

### KIND: find the bug
### HINT 1: Follow a sequence of 5 tokens, in two ways: all of them new; and 4 cached, 1 new. Which
### HINT 1: of the three results differ for the last token?
### HINT 2: seq_len counts the new tokens, too. So where do the new ones begin?
### HINT 3: Token t of the sequence has position t, whoever reads it and when: positions[starts[b] +
### HINT 3: i] = num_cached[b] + i.
### DEBRIEF: In decoding every position is one too large. The rotary embedding sees differences of
### DEBRIEF: positions alone. Among the tokens of the answer they are right, and so they are among
### DEBRIEF: those of the prompt; from the answer to the prompt they are one too large. So the text
### DEBRIEF: stays fluent, and no test of "looks like English" finds it. A test that does: the
### DEBRIEF: cached logits equal those of a whole pass, token by token. vLLM computes these arrays
### DEBRIEF: by kernels, too: on a CPU they would take longer than a small step of the model.


@cuda.jit
def broken_kernel(starts, num_cached, block_table, positions, slots, seq_lens, page_size):
    """The step's numbers with the bug, to read and to run. Leave it as it is."""
    b, tx = cuda.blockIdx.x, cuda.threadIdx.x
    num_new = starts[b + 1] - starts[b]
    seq_len = num_cached[b] + num_new
    first = seq_len if num_cached[b] > 0 else 0  # an answer goes on where the sequence ends
    for i in range(tx, num_new, NUM_THREADS):
        t = num_cached[b] + i
        slots[starts[b] + i] = block_table[b, t // page_size] * page_size + t % page_size
        positions[starts[b] + i] = first + i
    if tx == 0:
        seq_lens[b] = seq_len


@cuda.jit
def kernel(starts, num_cached, block_table, positions, slots, seq_lens, page_size):
    """Positions and slots of the new tokens, and the number of keys in the end."""
    ### BEGIN SOLUTION
    b, tx = cuda.blockIdx.x, cuda.threadIdx.x
    num_new = starts[b + 1] - starts[b]
    for i in range(tx, num_new, NUM_THREADS):
        t = num_cached[b] + i
        slots[starts[b] + i] = block_table[b, t // page_size] * page_size + t % page_size
        positions[starts[b] + i] = t
    if tx == 0:
        seq_lens[b] = num_cached[b] + num_new
    ### END SOLUTION
