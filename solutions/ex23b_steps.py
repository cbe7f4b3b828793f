"""ex23b · Predict: two ways of batching, by count

A server has room for `batch` answers at a time. In each step every answer that runs gets one token.
All requests are there at the start, in a queue; answers[i] is the number of tokens of answer i.

static_steps(answers, batch)
    The first `batch` requests begin together. The next ones begin when all of these have ended.
continuous_steps(answers, batch)
    When an answer ends, the next request of the queue begins in the next step.

Both return the number of steps until the last answer has ended, an int; 0 without requests.
answers is a list of ints >= 1, and batch an int >= 1. About 1 line and 5 lines; no model runs.
"""

### KIND: predict
### HINT 1: Take batch = 2 and answers of 1, 4, 1, 1 tokens, and draw the two places as two rows.
### HINT 2: Static: a batch takes as many steps as its longest answer. Continuous: keep for each
### HINT 2: place the step in which it becomes free; the next request takes the place that is free
### HINT 2: first.
### HINT 3: ends = [0] * batch; for each answer: place = ends.index(min(ends)), then ends[place] +=
### HINT 3: n. The last end is max(ends).
### DEBRIEF: Static batching pays for the longest answer of each batch, continuous batching for the
### DEBRIEF: mean: tokens / batch, and an end in which places stay empty. The ratio is the longest
### DEBRIEF: of a batch over the mean, so it grows with the spread of the lengths and is 1 without
### DEBRIEF: one. This is Orca's iteration-level scheduling. Its gain is larger in a paper's table,
### DEBRIEF: because requests also wait for a batch to begin.


def static_steps(answers, batch):
    """Steps if a batch begins when the last one has ended."""
    ### BEGIN SOLUTION
    return sum(max(answers[i : i + batch]) for i in range(0, len(answers), batch))
    ### END SOLUTION


def continuous_steps(answers, batch):
    """Steps if a request begins as soon as there is room for it."""
    ### BEGIN SOLUTION
    ends = [0] * batch
    for n in answers:
        place = ends.index(min(ends))
        ends[place] += n
    return max(ends)
    ### END SOLUTION
