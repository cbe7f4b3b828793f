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
# Results of one call are mostly alive until the next one returns, so two addresses alternate; the
# layers of a model that trains each come back to their own.
GRAPHS_OF_STREAM = 32
MAX_GRAPHS = 1024  # of all launches together

_num_graphs = 0


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
        self.graphs, self.repeats, self.context = {}, 0, 0  # of each stream: graphs by their words

    def enqueue(self, words: list, stream: int, capturing: bool) -> bool:
        """Enqueue all launches with these words; return False if that cannot be done."""
        with self.lock:
            known = self.graphs.get(stream)
            if known and not capturing:
                context = self.context
                if context != current_context() and not enter_context(context):
                    return False
                words = tuple(words)
                graph = known.get(words) or self._graph_of(words, known, stream)
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
                self.graphs[stream] = {tuple(words): made} if made else {}  # {}: do not try again
                self.context = made.context if made else 0
        return True

    def _graph_of(self, words, known, stream):
        """A graph with these words, one of the stream's known ones from now on."""
        self.write(*words)
        made = None
        if len(known) < GRAPHS_OF_STREAM and _num_graphs < MAX_GRAPHS:
            made = _make_graph(self.prepared, stream)
        if made is None:
            made = known.pop(next(iter(known)))  # the oldest
            made.update()
        known[words] = made
        return made


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
        self.nodes, self.context = nodes, current_context()
        weakref.finalize(self, _destroy, graph, self.launched).atexit = False

    def update(self):
        """Copy the current parameters into the graph."""
        for node, params in self.nodes:
            value_of(driver.cuGraphExecKernelNodeSetParams(self.launched, node, params))

    def enqueue(self):
        """Enqueue with the parameters of its making or of the last update."""
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
    global _num_graphs
    try:
        with relaxed_capture():
            made = Graph(launches, stream)
    except (RuntimeError, AttributeError, TypeError):
        return None
    _num_graphs += 1
    return made


def _destroy(graph, launched):
    global _num_graphs
    _num_graphs -= 1
    if current_context():  # without one, these calls end the process
        driver.cuGraphExecDestroy(launched)  # a graph that is running ends first
        driver.cuGraphDestroy(graph)
