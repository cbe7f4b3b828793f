"""Replays a call: repeats its recorded allocations and launches without running its function again.

After its checks the first call of flash_attn_v2(q, k, v) does this:

    out = empty(...)
    lse = empty(...)
    launch(prepared, [q, k, v, out, lse])
    return out, lse

A later call with the same layouts and options does these steps and nothing else.

On a GPU a function of this package depends on its arrays only by their layouts, by whether they
begin at a multiple of 16 bytes, and, for a tensor map, by their addresses. Its first call with some
layouts and options (`what_decides`) is recorded (`Recording`): its allocations, the numbers that
it computes from addresses and from a seed, its launches. A later call repeats these steps with its
own arrays and seed (`_make_replay`).
"""

import functools
import itertools
import operator
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fa_numba.expressions.mask_function import MaskFunction
from fa_numba.expressions.trace import meaning
from fa_numba.runtime import graphs, launching, plan_key
from fa_numba.runtime.plan_key import PLAIN_TYPES

MAX_REPLAYS = 1024  # of one function
ALIGNMENT = 256  # of an array's address, as that of every allocation
NOT_RECORDED = object()  # the replay of a call that has not been made before
SEEDS = range(2**64)  # values of the option `seed`; a replay writes another one where it is read


class RefusedError(Exception):
    """A call cannot be repeated as it was recorded. Nothing has been launched."""


class _Local(threading.local):
    recording = None


_local = _Local()


def current():
    """Return the recording in progress in this thread, or None."""
    return _local.recording


def replayed(function: Callable, library_of_type: Callable) -> Callable:
    """Return the function with its calls recorded and replayed: see `arrays.replayed`.

    Parameters
    ----------
    function : callable
    library_of_type : callable
        Maps a type of arrays to its `arrays.Library`, or to None if calls cannot be replayed.
    """
    replays = {}

    def library_by_name(options):
        libraries = map(library_of_type, map(type, options.values()))
        return next(filter(None, libraries), None)

    def arguments_of(library, args, options):
        """The arrays and the seed of a call, and its key."""
        seed = options.get("seed")
        deciding = {**options, "seed": 0} if type(seed) is int else options
        given, key = what_decides(library.layout, args, deciding)
        return given, seed, key

    def replay_of(*args, **options):
        """Return the replay of a call that was made with such arguments, or None."""
        library = library_of_type(type(args[0]))
        if library is None or not launching.enabled:
            return None
        _, _, key = arguments_of(library, args, options)
        return replays.get(key) or None

    @functools.wraps(function)
    def call(*args, **options):
        library = library_of_type(type(args[0])) if args else library_by_name(options)
        if library is None or _local.recording or not launching.enabled:
            return function(*args, **options)
        try:
            given, seed, key = arguments_of(library, args, options)
            replay = replays.get(key, NOT_RECORDED)
        except (AttributeError, RuntimeError, TypeError):  # an argument that cannot be compared
            return function(*args, **options)
        if replay is NOT_RECORDED:
            if len(set(map(id, given))) < len(given):  # one array as two arguments
                args, options = distinct(args, options, library.view)
                given, _ = what_decides(library.layout, args, options)
                if len(set(map(id, given))) < len(given):  # an argument of a mask or a score
                    return function(*args, **options)
            with Recording(given, library, has_seed=type(seed) is int) as recording:
                result = function(*args, **options)
            if len(replays) >= MAX_REPLAYS:
                replays.clear()
            replays[key] = recording.replay(result)
            return result
        if replay:
            try:
                return replay(given, seed)
            except RefusedError:
                pass
        return function(*args, **options)

    call.replays, call.replay_of = replays, replay_of
    return call


def what_decides(layout: Callable, args: tuple, options: dict) -> tuple:
    """Return the arrays of a call, and a key: all layouts and options, which decide its steps.

    Raise an error for an option that is neither plain nor an array.
    """
    try:
        arrays, key = args, (args and type(args[0]), *map(layout, args))
    except AttributeError:  # an option by its position, such as the k of softmax_topk(x, k)
        plain = {str(i): x for i, x in enumerate(args) if type(x) in PLAIN_TYPES}
        if not plain:
            raise
        others = tuple(x for x in args if type(x) not in PLAIN_TYPES)
        return what_decides(layout, others, plain | options)
    if not options:
        return arrays, key
    if "mask" in options or "score" in options:
        options = with_meanings(options)
    others, of_options = plan_key.of_arguments(layout, (*options.values(),))
    return (*arrays, *others) if others else arrays, (*key, *options, of_options)


def with_meanings(options):
    """The options with all that decides a mask and a score in place of the function.

    Its arguments are options of their own. A TypeError where functions cannot be compared.
    """
    found = dict(options)
    for name in ("mask", "score"):
        function, args = found.get(name), found.get(f"{name}_args", ())
        if function is None:
            continue
        if isinstance(function, MaskFunction) and not args:
            function, args = function.function, function.args
        found.pop(f"{name}_args", None)
        # A tuple is a node of `expressions`.
        found[name] = (function,) if isinstance(function, tuple) else (meaning(function),)
        found |= {f"{name}_args[{i}]": x for i, x in enumerate(args)}
    return found


def distinct(args, options, view):
    """Return the arguments of a call with a view in place of an array that comes again.

    A recording tells arrays apart by identity. A recording of different objects is also right for
    one array in several arguments, because it holds only where each address goes.
    """
    seen = set()

    def own(x):
        if type(x) in PLAIN_TYPES or type(x) is tuple:
            return x
        if id(x) in seen:
            return view(x)
        seen.add(id(x))
        return x

    return tuple(map(own, args)), {name: own(x) for name, x in options.items()}


class View(NamedTuple):
    """An array that begins where another one does; `source` is that one's index."""

    array: object
    source: int


class Computed(NamedTuple):
    """A number computed from the address of an array, or from the seed.

    `source` is the array's index, or None for the seed. If the number is an address of memory
    itself, ``owner(address of the array)`` is an object that keeps it.
    """

    number: object
    source: int | None
    compute: Callable
    owner: Callable | None = None


class Allocation(NamedTuple):
    """``allocate()`` makes another array like one; num_bytes is None if its contents matter."""

    allocate: Callable
    num_bytes: int | None


class Launched(NamedTuple):
    """A launch. Both lists hold pairs: index of an argument, index of its array or number."""

    prepared: launching.PreparedLaunch
    values: list
    arrays: list
    numbers: list


class Recording:
    """The steps of one call, while it runs.

    Parameters
    ----------
    arguments : sequence of array
        All different objects.
    library : arrays.Library
        Allocates arrays like these, and gives their addresses.
    has_seed : bool, default=False
        The call has an option `seed`, an integer.

    Attributes
    ----------
    arrays : list of array
        The arguments, then the allocated arrays. The index of an array is that in this list.
    views : list of View
    allocations : list of Allocation
        In the order of the arrays.
    computations : list of Computed
    launches : list of Launched
    remainders : dict of int to int
        For an argument whose alignment mattered: its index, and its address modulo 16.
    follows_seed : bool
        The call noted the numbers that it computes from its seed, or has none.
    complete : bool
        False if the call did something that these steps do not describe.
    """

    def __init__(self, arguments, library, has_seed=False):
        self.arguments, self.library, self.has_seed = list(arguments), library, has_seed
        self.num_arguments = len(arguments)
        self.restart()

    def restart(self):
        """Forget all steps: what was recorded so far is not part of the call after all."""
        self.arrays, self.follows_seed = list(self.arguments), not self.has_seed
        self.views, self.allocations, self.computations, self.launches = [], [], [], []
        self.remainders, self.complete = {}, True

    def __enter__(self):
        _local.recording = self
        return self

    def __exit__(self, *error):
        _local.recording = None

    def index_of(self, x) -> int | None:
        """Return the index of an array; None, and no longer complete, for an unknown one."""
        for known, index in (*zip(self.arrays, itertools.count()), *self.views):
            if known is x:
                return index
        self.complete = False
        return None

    def note_alignment(self, x, address):
        """Note that the call may depend on the last bits of an argument's address."""
        index = self.index_of(x)
        if self.complete and index < self.num_arguments:  # allocations begin at multiples of 256
            self.remainders[index] = address % 16

    def note_allocation(self, x, allocate, num_bytes=None):
        """Note a new array; parameters are those of `Allocation`."""
        self.arrays.append(x)
        self.allocations.append(Allocation(allocate, num_bytes))

    def note_view(self, view, x):
        """Note that `view` begins where x does."""
        self.views.append(View(view, self.index_of(x)))

    def note_computation(self, number, x, compute, owner=None):
        """Note that `number` came from ``compute(address of x, is a graph being captured)``.

        `owner` is that of `Computed`.
        """
        self.computations.append(Computed(number, self.index_of(x), compute, owner))

    def note_seed(self, number, compute):
        """Note that `number` came from ``compute(seed, is a graph being captured)``."""
        if self.has_seed:
            self.follows_seed = True
            self.computations.append(Computed(number, None, compute))

    def note_launch(self, prepared, arguments, values):
        """Note a launch with arrays and scalars as `arguments`; `values` are their bits."""
        arrays, numbers = [], []
        for i, x in enumerate(arguments):
            if not isinstance(x, (np.generic, bool, int, float)):
                arrays.append((i, self.index_of(x)))
            else:
                computed = enumerate(self.computations)
                numbers += [(i, index) for index, step in computed if step.number is x]
        self.launches.append(Launched(prepared, values, arrays, numbers))

    def replay(self, result):
        """Return a function that repeats the call, which returned `result`; or False."""
        indices = [self.index_of(x) for x in (result if isinstance(result, tuple) else (result,))]
        if isinstance(result, tuple) and len(indices) == 1:
            return False  # an itemgetter would return the array alone
        return self.complete and self.follows_seed and _make_replay(self, indices)


def _places(recording, results):
    """Where a replay has the addresses of a call's arrays.

    Arguments come first, then the arrays that are allocated one by one, then the scratch arrays:
    those that are no results, and whose contents do not matter. Two or more of these are parts of
    one block, because an allocation takes longer than all other work for an array.

    Returns
    -------
    words : dict of int to int
        Index of an array, and of its address.
    allocates : list of callable
    offsets : list of int
        Of the scratch arrays in the block, in bytes.
    block_bytes : int
        0: there is no block.
    """
    first, allocations = recording.num_arguments, recording.allocations
    indices = range(first, first + len(allocations))
    scratch = [
        i for i in indices if i not in results and allocations[i - first].num_bytes is not None
    ]
    if len(scratch) < 2:
        scratch = []
    single = [i for i in indices if i not in scratch]
    words = {i: word for word, i in enumerate((*range(first), *single, *scratch))}
    sizes = [-(-allocations[i - first].num_bytes // ALIGNMENT) * ALIGNMENT for i in scratch]
    *offsets, block_bytes = itertools.accumulate(sizes, initial=0)
    return words, [allocations[i - first].allocate for i in single], offsets, block_bytes


class Steps(NamedTuple):
    """The part of a recording that all its replays share.

    Attributes
    ----------
    library : arrays.Library
    device : int
        That of the arrays; a replay needs it to be the current one.
    has_seed : bool
    remainders : tuple of (int, int)
        Those of `Recording`.
    block_of : callable or None
        Allocates the scratch arrays.
    offsets : list of int
        Theirs in the block.
    computations : list of (int or None, callable, callable or None)
        Index of an address, None for the seed; computes a number from it; the number's owner.
    launches : graphs.Launches
    results : list of (int, Allocation or None)
        Index of each result among a call's arrays; None for an argument.
    """

    library: object
    device: int
    has_seed: bool
    remainders: tuple
    block_of: Callable | None
    offsets: list
    computations: list
    launches: graphs.Launches
    results: list


def _make_replay(recording, results):
    """Return a function that repeats a recorded call, and keeps none of its arrays alive.

    Parameters
    ----------
    recording : Recording
    results : list of int
        Indices of the arrays that the call returned.
    """
    library, num_arrays, first = recording.library, len(recording.arrays), recording.num_arguments
    word_of, allocates, offsets, block_bytes = _places(recording, results)
    *_, device = library.layout(recording.arrays[0])[:4]
    block_of = None
    if offsets:
        block_of = library.scratch(recording.arrays[0], block_bytes)
    computations = [
        (None if step.source is None else word_of[step.source], step.compute, step.owner)
        for step in recording.computations
    ]
    launches = graphs.Launches(
        num_arrays + len(computations),
        [
            (
                step.prepared,
                step.values,
                {i: word_of[index] for i, index in step.arrays}
                | {i: num_arrays + index for i, index in step.numbers},
            )
            for step in recording.launches
        ],
    )
    allocations = [None] * first + recording.allocations
    steps = Steps(
        library=library,
        device=device,
        has_seed=recording.has_seed,
        remainders=tuple(recording.remainders.items()),
        block_of=block_of,
        offsets=offsets,
        computations=computations,
        launches=launches,
        results=[(word_of[i], allocations[i]) for i in results],
    )
    return _repeat(steps, allocates, first)


def with_results(replay, change):
    """Return a replay of the same steps whose results are allocated otherwise, in the same layout.

    Parameters
    ----------
    replay : callable
    change : callable
        ``change(i, allocation)`` returns what allocates result i in the place of
        ``allocation.allocate``.
    """
    made, first = list(replay.allocates), replay.num_arguments
    for i, (place, allocation) in enumerate(replay.steps.results):
        if allocation is not None:
            made[place - first] = change(i, allocation)
    return _repeat(replay.steps, made, first)


def _repeat(steps, allocates, num_arguments):
    """The replay of these steps; `allocates` are for the arrays after the arguments."""
    library, needed, has_seed, remainders, block_of, offsets, *rest = steps
    computations, launches, results = rest
    results_of = operator.itemgetter(*[place for place, _ in results])
    address_of, block_address = library.address_of(), library.scratch_address
    current_device_and_stream = library.current_device_and_stream()
    is_capturing, relaunch, computed = library.is_capturing, launches.relaunch, launches.computed

    def compute_words(key, capturing):
        """The addresses and numbers of a call, and the owners of these numbers."""
        seed, *words = key
        if offsets:
            begin = words.pop()
            words += [begin + offset for offset in offsets]
        for index, remainder in remainders:
            if words[index] % 16 != remainder:
                raise RefusedError
        owners = []
        for source, compute, owner in computations:
            given_number = seed if source is None else words[source]
            words.append(compute(given_number, capturing))
            if owner:
                owners.append(owner(given_number))
        return words, owners

    def replay(given, seed=None):
        """Repeat the call with these arrays; raise RefusedError if that is impossible."""
        device, stream = current_device_and_stream()
        if device != needed or (has_seed and seed not in SEEDS):
            raise RefusedError
        capturing = stream != 0 and is_capturing(stream)  # the default stream never is
        arrays = *given, *map(operator.call, allocates)
        if block_of:
            block = block_of()  # freed when this function returns; the stream orders its uses
            key = seed, *map(address_of, arrays), block_address(block)
        else:
            key = seed, *map(address_of, arrays)
        if capturing or not relaunch(key, stream):
            words, owners = (not capturing and computed(key)) or compute_words(key, capturing)
            if not launches.enqueue(key, words, owners, stream, capturing):
                raise RefusedError
        if capturing:
            kept = arrays[num_arguments:]
            library.keep_captured((*kept, block) if block_of else kept)
        return results_of(arrays)

    replay.steps, replay.allocates, replay.num_arguments = steps, allocates, num_arguments
    return replay
