"""ex21c · Predict who waits

A ring of W ranks, c tokens on each, a causal mask. No rank can begin step t + 1 before its
neighbour has finished step t. So a step takes as long as its busiest rank, and the others wait.
Measure time in pairs (query, key): a rank computes one pair per unit of time.

busiest(layout, step, c)       pairs of the busiest rank in this step, an int
busy(layout, world_size, c)    the fraction of their time in which ranks compute, a float: the pairs
                               of the whole mask, divided by W times the time of all W steps

layout is "contiguous", "striped" or "zigzag", as in ex21b; c is even; in step 0 every rank has its
own keys.

Derive the numbers on paper: draw the mask of two ranks. The grader counts pair by pair. About 4
lines and 3 lines.
"""

### KIND: predict
### HINT 1: In step 0 each rank has c queries and their own c keys: a triangle with its diagonal. Is
### HINT 1: that number the same in all three layouts?
### HINT 2: Later steps. Contiguous: the keys of an earlier part are all visible. Striped: query i
### HINT 2: of rank r sees key j of a rank before r if j <= i. Zigzag: a rank has an early and a
### HINT 2: late half of c / 2 queries. Which of the four pairs of halves are visible?
### HINT 3: Step 0: c (c + 1) / 2. Later: c * c, c (c + 1) / 2 and c * c / 2. The whole mask has W c
### HINT 3: (W c + 1) / 2 pairs.
### DEBRIEF: Contiguous: c^2 per step for work that is c^2 / 2 on average, so busy tends to W / (2 W
### DEBRIEF: - 1): 67 % on 2 ranks, 53 % on 8. The idle half is no fault of the links; nothing but
### DEBRIEF: another layout removes it. Striped: (c + 1 / W) / (c + 1), almost 1 for long parts.
### DEBRIEF: Zigzag: exactly 1.


def busiest(layout, step, c):
    """Pairs of the rank that has the most of them in this step."""
    ### BEGIN SOLUTION
    diagonal = c * (c + 1) // 2
    if step == 0:
        return diagonal
    return {"contiguous": c * c, "striped": diagonal, "zigzag": c * c // 2}[layout]
    ### END SOLUTION


def busy(layout, world_size, c):
    """The fraction of rank-time in which ranks compute."""
    ### BEGIN SOLUTION
    time = sum(busiest(layout, step, c) for step in range(world_size))
    seqlen = world_size * c
    return seqlen * (seqlen + 1) / 2 / (world_size * time)
    ### END SOLUTION
