"""What the graders of several exercises share: cases, comparisons, and messages on known mistakes.

`grading` runs an answer in a process of its own; these files say what is expected of it.

attention    cases, gradients, traffic and races of attention kernels
mistakes     which known mistake explains a wrong attention output
softmax      rows of scores, and known mistakes with them
linear       linear attention
meter        expected memory traffic, array by array
"""
