"""Grading in two kinds of process, so that an answer can neither break nor forge a verdict.

The *judge* is the pytest process: it has the checks, the expected values, the report and the
progress file, and never runs a line of the learner's file. The *answering process* imports that
file, runs its functions and kernels for the judge, and sends back plain data. docs/grading.md lists
the attacks that this prevents, and those that it does not.

Judge: `answer` (the process and its limits), `proxies`, `judge_codec`, `launches`,
`explain`, `factors`, `files`.
Answering process: `forkserver` (makes it), `answering` (its loop), `guard` (its restrictions).
Both: `wire` (values as JSON and buffers), `failures` (errors as plain data), `lifetime`.
"""
