"""A training step as one CUDA graph.

A step has some three hundred launches, and Python needs longer to enqueue them than a GPU needs to
run them. A graph enqueues them all at once. Its arrays, sizes and addresses are fixed; the numbers
that differ from step to step are in one array, which is written before the graph is launched.

The graph's arrays come from a memory pool of their own: CuPy would give their memory to others
while the graph still writes to it.
"""

WARM_UPS = 3  # steps before the capture: kernels are compiled, libraries allocate their memory


class StepGraph:
    """Runs a function of one array, first as it is, later as a graph.

    Parameters
    ----------
    compute : callable
        ``compute(inputs)`` enqueues work on the current stream and returns an array. It reads
        and writes arrays of fixed addresses otherwise.
    inputs : array
        CuPy; to be written before each run.
    """

    def __init__(self, compute, inputs):
        import cupy

        self._cupy, self._compute, self._inputs = cupy, compute, inputs
        self._stream = cupy.cuda.Stream(non_blocking=True)  # the default one cannot be captured
        self._memory = cupy.cuda.MemoryPool()
        self._graph, self._result, self._runs = None, None, 0

    def run(self, numbers):
        """Write the inputs, and compute; returns a copy of the result.

        Parameters
        ----------
        numbers : NumPy array
            Of the shape and dtype of the inputs.
        """
        caller = self._cupy.cuda.get_current_stream()
        self._stream.wait_event(caller.record())
        with self._stream:
            self._inputs.set(numbers, stream=self._stream)
            self._runs += 1
            if self._runs <= WARM_UPS:
                with self._cupy.cuda.using_allocator(self._memory.malloc):
                    result = self._compute(self._inputs)
            else:
                if self._graph is None:
                    self._capture()
                self._graph.launch(self._stream)
                result = self._result.copy()
            done = self._stream.record()
        caller.wait_event(done)
        return result

    def _capture(self):
        self._stream.synchronize()
        with self._cupy.cuda.using_allocator(self._memory.malloc):
            self._stream.begin_capture()
            try:
                self._result = self._compute(self._inputs)
            finally:
                self._graph = self._stream.end_capture()
