"""CUDA graphs of launches that are repeated with other addresses.

A replayed call (`replay`) makes the same launches every time; only addresses change. `Launches`
makes them one by one at first. After some repetitions it builds a CUDA graph of them, because the
driver launches a whole graph in less time than a single kernel: 1.6 µs on an H200
(benchmarks/results/launch.json, docs/notes/launching.md). To build one costs more than it saves in
few calls. So addresses get a graph of their own once they have come back some times; one graph,
the spare one, is set to all others.
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
GRAPHS_OF_STREAM = 64
CALLS_BEFORE_OWN_GRAPH = 4  # with the same addresses
MAX_COUNTED = 512  # lists of addresses without a graph of their own whose calls are counted
MAX_GRAPHS = 1024  # of all launches together

_num_graphs = 0


class Launches:
    """Launches in a fixed order, repeated with other addresses.

    The words of a repetition, addresses of arrays and numbers computed from them, are written into
    one row of memory. The driver reads these parameters of all launches there. A graph is found by
    its key, the seed and the addresses, before numbers are computed from them.

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
        self.graphs = {}  # of each stream: graphs by their keys
        self.spare = {}  # of each stream: its graph for all other keys
        self.repeats = 0
        self.counted = {}  # by keys without a graph of their own: calls, words, owners

    def relaunch(self, key: tuple, stream: int) -> bool:
        """Enqueue the graph that the stream has for this key; return False if there is none."""
        with self.lock:
            known = self.graphs.get(stream)
            graph = known.get(key) if known else None
            if graph is None:
                return False
            if graph.context != current_context() and not enter_context(graph.context):
                return False
            graph.enqueue()
        return True

    def computed(self, key):
        """Return (words, owners) of an earlier call with this key, or None."""
        found = self.counted.get(key)
        return found and found[1:]

    def enqueue(self, key, words, owners, stream, capturing) -> bool:
        """Enqueue all launches; return False if that cannot be done.

        Parameters
        ----------
        key : tuple
            It decides the words.
        words : list of int
        owners : list
            They own memory whose address is a word; a graph keeps them.
        stream : int
        capturing : bool
        """
        with self.lock:
            spare = self.spare.get(stream)
            if spare and not capturing:
                if spare.context != current_context() and not enter_context(spare.context):
                    return False
                self.write(*words)
                graph = self._graph_for(key, words, owners, spare, stream)
                graph.owners = owners
                graph.enqueue()
                return True
            self.write(*words)
            for prepared in self.prepared:
                if not prepared.enqueue(stream):
                    return False
            self.repeats += 1
            often = self.repeats > REPEATS_BEFORE_GRAPH and not capturing
            if often and stream not in self.spare and len(self.spare) < MAX_STREAMS:
                self.graphs[stream] = {}
                self.spare[stream] = _make_graph(self.prepared, stream)  # None: no other is tried
        return True

    def _graph_for(self, key, words, owners, spare, stream):
        """A graph with the current parameters: one of the key's own, or the spare one."""
        calls, *_ = self.counted.pop(key, (0,))
        if calls + 1 < CALLS_BEFORE_OWN_GRAPH:
            if len(self.counted) >= MAX_COUNTED:
                self.counted.clear()
            self.counted[key] = calls + 1, words, owners
            spare.update()
            return spare
        known, made = self.graphs[stream], None
        if len(known) < GRAPHS_OF_STREAM and _num_graphs < MAX_GRAPHS:
            made = _make_graph(self.prepared, stream)
        if made is None:
            made = known.pop(next(iter(known))) if known else spare
            made.update()
        if made is not spare:
            known[key] = made
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

    Attributes
    ----------
    owners : list
        Objects that the graph keeps: they own memory that the launches read.
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
        self.nodes, self.context, self.owners = nodes, current_context(), ()
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
