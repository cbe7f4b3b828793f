"""What a call did on a GPU, to be done again: the arrays that it allocated, and its launches.

A function of this package looks at nothing of its GPU arrays but their layouts, whether they begin
at a multiple of 16 bytes, and, for a tensor map, their addresses. A second call with the same
layouts and the same options allocates the same arrays and makes the same launches, with other
addresses. `arrays.replayed` notes that in the first call and does no more in the others.
"""

import itertools
import operator
import threading

import numpy as np

_local = threading.local()


class RefusedError(Exception):
    """A call cannot be done again as it was noted. Nothing has been launched."""


class Recording:
    """The steps of one call.

    Parameters
    ----------
    arguments : list of array
        No two of them the same object.
    again : Again
        How a library's arrays are allocated and launched on.

    Attributes
    ----------
    known : list of array
        The call's arguments, then what it allocated or computed from an address.
    steps : list of callable
        Each does one thing again, given such a list of another call, to which it adds what it
        allocates, the address of a stream, and whether a CUDA graph is captured there.
    remainders : dict of int to int
        By the number of an argument whose address mattered: the address modulo 16.
    complete : bool
        False where something was done that cannot be told by such steps.
    results : callable
        Gives of such a list what the call returned: an array or a tuple of some.
    """

    def __init__(self, arguments, again):
        self.known, self.again, self.num_arguments = list(arguments), again, len(arguments)
        self.views = []  # of arrays that are known: (view, number)
        self.steps, self.remainders, self.complete = [], {}, True

    def __enter__(self):
        _local.recording = self
        return self

    def __exit__(self, *error):
        _local.recording = None

    def place(self, x):
        """Number of an array; None for one that has come from elsewhere."""
        for known, i in (*zip(self.known, itertools.count()), *self.views):
            if known is x:
                return i
        self.complete = False
        return None

    def looked_at(self, x, address):
        """What was done may follow from the last bits of an argument's address."""
        place = self.place(x)
        if self.complete and place < self.num_arguments:  # an allocation begins at 256 bytes
            self.remainders[place] = address % 16

    def allocated(self, x, allocate):
        """`allocate`, called with the first argument, makes an array like x."""
        self.known.append(x)
        self.steps.append(lambda known, stream, capturing: known.append(allocate(known[0])))

    def seen_as(self, view, x):
        """`view` begins where x does."""
        self.views.append((view, self.place(x)))

    def computed(self, number, x, compute):
        """`number` is what ``compute(address of x, is a graph being captured)`` gave."""
        place, address_of = self.place(x), self.again.address
        self.known.append(number)
        self.steps.append(
            lambda known, stream, capturing: known.append(
                compute(address_of(known[place]), capturing)
            )
        )

    def launched(self, plan, arguments, values):
        """`arguments` are the arrays and scalars that the kernel was given, `values` their bits."""
        plan = plan.copy(values)  # in which nothing changes but addresses
        arrays, numbers = [], []
        for (_, offset), x in zip(plan.variable, arguments, strict=True):
            word = offset // 8
            if not isinstance(x, (np.generic, bool, int, float)):
                arrays.append((word, self.place(x)))
            else:
                numbers += [(word, place) for place, known in enumerate(self.known) if known is x]
        self.steps.append(_launch(plan, self.again.address, arrays, numbers))

    def finish(self, result):
        """This recording, which knows what the call returned; or False."""
        if isinstance(result, tuple) and len(result) == 1:
            self.complete = False  # an itemgetter would give the array alone
        places = map(self.place, result if isinstance(result, tuple) else (result,))
        self.results = operator.itemgetter(*places)
        self.known = self.views = None  # nothing of the first call is kept alive
        return self if self.complete else False


def _launch(plan, address_of, arrays, numbers):
    """A step; both lists hold (word of the plan's parameters, place among what is known)."""
    words = plan.words

    def launch(known, stream, capturing):
        with plan.lock:
            for word, place in arrays:
                words[word] = address_of(known[place])
            for word, place in numbers:
                words[word] = known[place]
            if not plan.enqueue(stream):
                raise RefusedError

    return launch


def current():
    """The recording that is under way in this thread, or None."""
    return getattr(_local, "recording", None)
