"""CUDA graphs of launches that are repeated with other addresses.

A replayed call (`replay`) makes the same launches every time; only addresses change. `Launches`
makes them one by one at first. After some repetitions it builds a CUDA graph of them, because the
driver launches a whole graph in less time than a single kernel: 1.7 µs on an H200
(benchmarks/results/launch.json, docs/notes/launching.md). To build one costs more than it saves in
few calls.
"""

import ctypes
import functools
import struct
import threading
import weakref

from fa_numba.runtime.launching import (
    cu_stream,
    current_context,
    driver,
    enter_context,
    relaxed_capture,
    value_of,
)

REPEATS_BEFORE_GRAPH = 8
MAX_STREAMS = 4  # streams for which graphs of the same launches are kept
# Results of one call are mostly alive until the next one returns, so two addresses alternate.
GRAPHS_OF_STREAM = 2


class Launches:
    """Launches in a fixed order, repeated with other addresses.

    The words of a repetition, addresses of arrays and numbers computed from them, are written into
    one row of memory. The driver reads these parameters of all launches there.

    Parameters
    ----------
    num_words : int
    recorded : list of (PreparedLaunch, values, words)
        `words` maps the index of an argument to the index of its word; the other arguments keep
        their `values`.
    """

    def __init__(self, num_words, recorded):
        self.lock = threading.Lock()  # one thread at a time may use the row
        self.row = (ctypes.c_uint64 * num_words)()
        self.write = functools.partial(struct.Struct(f"{num_words}Q").pack_into, self.row, 0)
        first = ctypes.addressof(self.row)
        self.prepared = [
            prepared.copy(values, {i: first + 8 * word for i, word in words.items()})
            for prepared, values, words in recorded
        ]
        self.graphs, self.repeats = {}, 0  # graphs: of each stream, the one used last in the end

    def enqueue(self, words: list, stream: int, capturing: bool) -> bool:
        """Enqueue all launches with these words; return False if that cannot be done."""
        with self.lock:
            known = self.graphs.get(stream)
            if known and not capturing:
                context = known[0].context
                if context != current_context() and not enter_context(context):
                    return False
                graph = known[-1]
                if words != graph.words:
                    graph = self._graph_of(words, known, stream)
                graph.enqueue()
                return True
            self.write(*words)
            for prepared in self.prepared:
                if not prepared.enqueue(stream):
                    return False
            self.repeats += 1
            often = self.repeats > REPEATS_BEFORE_GRAPH and not capturing
            if often and stream not in self.graphs and len(self.graphs) < MAX_STREAMS:
                made = _make_graph(self.prepared, stream)
                self.graphs[stream] = [made] if made else []  # none: do not try again
        return True

    def _graph_of(self, words, known, stream):
        """The graph with these words, now the last of the stream's known ones."""
        graph = known[0]
        if words != graph.words:
            self.write(*words)
            if len(known) < GRAPHS_OF_STREAM and (made := _make_graph(self.prepared, stream)):
                known.append(made)
                made.words = words
                return made
            graph.update(words)
        known.append(known.pop(0))
        return graph


class Graph:
    """A CUDA graph of some launches.

    Parameters
    ----------
    launches : list of PreparedLaunch
        The graph keeps them alive, and with them their parameters.
    stream : int
        Handle of the only stream that it is launched on: on two, its launches would wait for each
        other.
    """

    def __init__(self, launches, stream):
        self.launches, self.stream = launches, cu_stream(stream)
        graph, after, nodes = value_of(driver.cuGraphCreate(0)), [], []
        for prepared in launches:
            params = _node_params(prepared)
            node = value_of(driver.cuGraphAddKernelNode(graph, after, len(after), params))
            nodes.append((node, params))
            after = [node]
        self.launched = value_of(driver.cuGraphInstantiate(graph, 0))
        self.nodes, self.words, self.context = nodes, None, current_context()
        weakref.finalize(self, _destroy, graph, self.launched).atexit = False

    def update(self, words):
        """Copy the current parameters, computed from these words, into the graph."""
        self.words = None
        for node, params in self.nodes:
            value_of(driver.cuGraphExecKernelNodeSetParams(self.launched, node, params))
        self.words = words

    def enqueue(self):
        """Enqueue with the parameters of the last update."""
        (error,) = driver.cuGraphLaunch(self.launched, self.stream)
        if error:
            raise RuntimeError(
                f"cuGraphLaunch failed for a CUDA graph of {len(self.nodes)} launches: {error.name}"
            )


def _node_params(prepared):
    """Describe a launch as a node of a CUDA graph."""
    params = driver.CUDA_KERNEL_NODE_PARAMS()
    params.func = prepared.function
    params.gridDimX, params.gridDimY, params.gridDimZ = prepared.grid
    params.blockDimX, params.blockDimY, params.blockDimZ = prepared.block
    params.sharedMemBytes, params.kernelParams = prepared.shared_bytes, prepared.pointers_at
    return params


def _make_graph(launches, stream):
    """Return a graph of these launches, or None if the driver cannot make one."""
    try:
        with relaxed_capture():
            return Graph(launches, stream)
    except (RuntimeError, AttributeError, TypeError):
        return None


def _destroy(graph, launched):
    if current_context():  # without one, these calls end the process
        driver.cuGraphExecDestroy(launched)  # a graph that is running ends first
        driver.cuGraphDestroy(graph)
