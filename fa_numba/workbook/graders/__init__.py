"""Cases, comparisons and messages that the graders of several exercises share.

`grading` runs an answer in a process of its own; these files say what is expected of it.

- attention: heads of attention, comparison with float64, guards around outputs
- softmax: rows of scores, and comparison with float64
- linear: heads of linear attention
- ranks: programs for many ranks, run on them, and a causal head cut into parts
- training: comparison with float64, and a layer with its gradients
- mistakes: which known mistake explains a wrong attention output
- tiles: products by tiles with several sums in a thread, their loads and types
- causes: the error of a check that names its likely causes
- meter: expected HBM traffic, memory on the chip, and races, by the engine's meter
"""
