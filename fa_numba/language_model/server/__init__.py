"""A server of a small language model: continuous batching from pages of keys and values.

Each step computes one token of every answer that is under way, and parts of prompts. Requests join
and leave between any two steps.

options.py            how to answer a request: sampling, beams, stop strings
request.py            a request, and the branches of its answer
fair_queue.py         who is next
decoding.py           the branches that draw a token in every step, as arrays
chunked_scheduler.py  the work of a step: pages, chunks of prompts, preemption
paged_model.py        the work of a step on arrays: the model over pages
draft_tree.py         guesses of the next tokens, and which of them are kept
ngram_drafter.py      guesses from the sequence itself
model_drafter.py      guesses by a small model
decode_graphs.py      a step of few rows as one CUDA graph
page_moves.py         writing, copying and swapping pages, on a GPU by the kernels of `kv_cache`
choose.py             the next tokens: greedy, top-k, nucleus, beams
scores.py             log-probabilities of prompts and answers
text_stream.py        text of tokens as they come, up to a stop string
engine.py             all of these together; NumPy or CuPy, as the weights are
background.py         an engine in a thread of its own
completions.py        requests and answers in OpenAI's JSON
guard.py              who may ask: the names of this machine, and keys
http.py               the web server; page.html shows it at work
serve.py              the command `fa-numba serve`

Papers: Yu et al. 2022, Orca (OSDI): scheduling at each iteration; Kwon et al. 2023,
arXiv:2309.06180: pages, sharing, preemption; Agrawal et al. 2024, arXiv:2403.02310: chunks of
prompts beside decoding; Sheng et al. 2024, arXiv:2401.00588: fairness.
"""

from fa_numba.language_model.server.engine import Engine, Overloaded
from fa_numba.language_model.server.options import Options

__all__ = ["Engine", "Options", "Overloaded"]
