"""The jobs: each name says a computation, and runs the fastest kernel that can do it.

attention    flash_attn, flash_attn_grad
packed       flash_attn_varlen, flash_attn_varlen_grad
decoding     flash_decode, paged_attn_decode
mla_decode   mla_decode: latents
cascade      cascade_decode: paged_attn_decode where sequences share keys
topk_decode  topk_decode: paged_attn_decode to the pages that may matter most
softmax      softmax, softmax_topk
which        which kernel a job runs for some arguments, and why

candidates   a function that may be called, and when it cannot
job          how a job chooses and calls
options      the options that differ from their defaults

A job's order of choice:

1. NumPy arrays go to fa_numba.cpu, whose candidate is the first of every job but `mla_decode`.
2. On a GPU, the first candidate in the order of the list that can take the arrays and options.
3. On the CPU engine: the lesson kernel, which runs fastest there.

To add a candidate, add a line to the tuple in the job's file, before those it should be preferred
to:

    Candidate("flash_attn_new", "tensor_core", why="faster than ...", check=can_run)

``why`` is what `which` prints. ``check(candidate, inputs, options)`` raises an error of
fa_numba.checks where the function cannot run; options that the function lacks are found from its
signature. A kernel that is faster for some problems only refuses the others in its check.
``python -m benchmarks choice`` says whether the order is right.
"""

from fa_numba.dispatch.attention import flash_attn, flash_attn_grad
from fa_numba.dispatch.cascade import cascade_decode
from fa_numba.dispatch.decoding import flash_decode, paged_attn_decode
from fa_numba.dispatch.job import JOBS, Choice
from fa_numba.dispatch.mla_decode import mla_decode
from fa_numba.dispatch.packed import flash_attn_varlen, flash_attn_varlen_grad
from fa_numba.dispatch.softmax import softmax, softmax_topk
from fa_numba.dispatch.topk_decode import topk_decode
from fa_numba.dispatch.which import which
