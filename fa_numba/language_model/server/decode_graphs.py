"""A step of few rows as one CUDA graph.

Such a step has some hundred small launches: on a GPU it takes as long as Python needs to enqueue
them. A graph enqueues them all at once. Its arrays, sizes and addresses are fixed, so there is one
for each number of rows, rounded up to a power of two. The rows that the step does not need are
padding: their slot is −1, so that they write nothing, and their results are not read.

A token of a prompt is a row like a token that was chosen: one query, which sees the keys up to its
own position. All keys of a layer are written before any is read. So prompts and answers share a
step, and its graph. A kernel for many queries would read the keys of a prompt once for a tile of
its rows; here each row reads them again. `LARGEST_READ` limits that. A chain of guesses has such
rows too; a tree that branches has a mask, and no graph. Where answers attend to few pages, a step
with rows of prompts has none either: these attend to all.

CuPy refuses to call cuBLAS during a capture, so `products` calls it. Where `products` cannot, there
is no graph.

The arrays of a graph come from a memory pool of their own. From CuPy's pool others could get their
memory while the graph still writes to it.
"""

import numpy as np

from fa_numba.language_model import model
from fa_numba.language_model.server import choose
from fa_numba.tiling.block_sizes import ceil_div

WARM_UPS = 2  # before a capture: kernels are compiled, and libraries allocate their memory
PROMPT_ROWS = 256  # of a step: the number of branches may allow more
LARGEST_READ = 1 << 30  # bytes of keys and values, by the rows of prompts; 0.3 ms on an H200


class DecodeGraphs:
    """The graphs of a model over pages.

    Parameters
    ----------
    paged : PagedModel
        On a GPU.
    max_branches : int
        That a step may have.
    """

    def __init__(self, paged, max_branches):
        self.paged, self.max_rows = paged, max(max_branches, PROMPT_ROWS)
        self.token_bytes = paged.page_bytes // paged.pool.page_size
        self.columns = ceil_div(paged.config.context, paged.pool.page_size)
        self._memory = paged.xp.cuda.MemoryPool()
        self.graphs = {}

    def suits(self, plan) -> bool:
        """Whether a step has rows, not too many, no mask, and none that read too many keys."""
        keys = sum((part.stop - part.start) * part.stop for part in plan.parts)
        rows = plan.sizes().sum()
        few = 0 < rows <= self.max_rows
        few &= not self.paged.topk_pages or rows == self.paged.few_rows(plan)
        few &= all(part.draft is None or part.draft.is_chain for part in plan.parts)
        return bool(few and keys * self.token_bytes <= LARGEST_READ)

    def run(self, plan, temperatures, number):
        """As `PagedModel.run`, for a plan that suits."""
        numbers = self._numbers(plan, temperatures)
        key = len(numbers), number
        if key not in self.graphs:
            self.graphs[key] = self._capture(*key)
        graph, inputs, both = self.graphs[key]
        inputs.set(numbers)
        graph.launch(self.paged.xp.cuda.get_current_stream())
        probabilities, tokens = choose.on_host(both)
        rows = plan.choosing()
        return (probabilities[rows], tokens[rows]) if rows.size else (None, None)

    def _numbers(self, plan, temperatures):
        """Of each row: token, position, slot, length, temperature, pages; then the padding."""
        tokens, positions, slots = plan.rows()
        _, table = self.paged.sequences_of(plan)
        numbers = self._padding(1 << (len(tokens) - 1).bit_length())
        rows = numbers[: len(tokens)]
        rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3] = tokens, positions, slots, positions + 1
        rows[plan.choosing(), 4] = temperatures.view(np.int32)
        columns = min(table.shape[1], self.columns)
        rows[:, 5 : 5 + columns] = np.repeat(table[:, :columns], plan.sizes(), axis=0)
        rows[:, 5 + columns :] = -1
        return numbers

    def _padding(self, rows):
        """Numbers of rows that are not read: token 0 at position 0 without a slot, on page 0."""
        numbers = np.zeros((rows, 5 + self.columns), np.int32)
        numbers[:, 2], numbers[:, 3], numbers[:, 4] = -1, 1, np.float32(1).view(np.int32)
        return numbers

    def _capture(self, rows, number):
        """The graph of so many rows, its input and its result."""
        xp = self.paged.xp
        with xp.cuda.using_allocator(self._memory.malloc):
            inputs = xp.asarray(self._padding(rows))
            stream = xp.cuda.get_current_stream()
            for _ in range(WARM_UPS):
                self._decode(inputs, number)
            stream.synchronize()
            stream.begin_capture()
            try:
                both = self._decode(inputs, number)
            finally:
                graph = stream.end_capture()
        return graph, inputs, both

    def _decode(self, inputs, number):
        # Columns become arrays of their own: kernels take 32-bit numbers side by side.
        xp, paged = self.paged.xp, self.paged
        tokens, positions, slots, lengths, temperatures = xp.ascontiguousarray(inputs[:, :5].T)
        table = xp.ascontiguousarray(inputs[:, 5:])

        to_pages = paged.attend_to_few if paged.topk_pages else paged.attend_to_pages

        def attend(layer, q):
            return to_pages(layer, q[:, None], table, lengths)

        x = paged.layers(tokens, positions, slots, attend)
        logits = model.logits(paged.weights, x)
        return choose.most_likely(logits, temperatures.view(np.float32), number)
