"""A step without prompts as one CUDA graph.

Such a step has one row for each branch, and some hundred small launches: on a GPU it takes as long
as Python needs to enqueue them. A graph enqueues them all at once. Its arrays, sizes and addresses
are fixed, so there is one for each number of rows, rounded up to a power of two. The rows that are
too many are padding: their slot is −1, so that they write nothing, and their results are not read.

CuPy refuses to call cuBLAS during a capture: `products` calls it, and without it there is no graph.

The arrays of a graph come from a memory pool of their own: CuPy would give their memory to others
while the graph still writes to it.
"""

import numpy as np

from fa_numba.language_model import model
from fa_numba.language_model.server import choose
from fa_numba.tiling.block_sizes import ceil_div

WARM_UPS = 2  # before a capture: kernels are compiled, and libraries allocate their memory


class DecodeGraphs:
    """The graphs of a model over pages.

    Parameters
    ----------
    paged : PagedModel
        On a GPU.
    max_rows : int
        More rows than these run without a graph.
    """

    def __init__(self, paged, max_rows):
        self.paged, self.max_rows = paged, max_rows
        self.columns = ceil_div(paged.config.context, paged.pool.page_size)
        self._memory = paged.xp.cuda.MemoryPool()
        self.graphs = {}

    def suits(self, plan) -> bool:
        """Whether a step has only rows that choose a token, and not too many."""
        return 0 < len(plan.decoding) + len(plan.parts) <= self.max_rows and all(
            part.chosen and part.stop - part.start == 1 for part in plan.parts
        )

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
        return probabilities[: len(temperatures)], tokens[: len(temperatures)]

    def _numbers(self, plan, temperatures):
        """Of each row: token, position, slot, length, temperature, pages; then the padding."""
        lengths, table = self.paged.sequences_of(plan)
        numbers = self._padding(1 << (len(lengths) - 1).bit_length())
        rows = numbers[: len(lengths)]
        tokens, positions, slots = plan.rows()
        rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3] = tokens, positions, slots, lengths
        rows[:, 4] = temperatures.view(np.int32)
        columns = min(table.shape[1], self.columns)
        rows[:, 5 : 5 + columns] = table[:, :columns]
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

        def attend(layer, q):
            return paged.attend_to_pages(layer, q[:, None], table, lengths)

        x = paged.layers(tokens, positions, slots, attend)
        logits = model.logits(paged.weights, x)
        return choose.most_likely(logits, temperatures.view(np.float32), number)
