"""What a call did on a GPU, to be done again: the arrays that it allocated, and its launches.

A function of this package looks at nothing of its GPU arrays but their layouts. A second call with
the same layouts and the same options allocates the same arrays and makes the same launches, with
other addresses. `arrays.replayed` notes that in the first call and does no more in the others.
"""

import threading

import numpy as np

_local = threading.local()


class Recording:
    """The steps of one call.

    Attributes
    ----------
    known : list of array
        The call's arguments, then what it allocated.
    steps : list of tuple
        ("empty", shape, dtype) or ("full", shape, value, dtype) for an array; ("launch", plan,
        values, places) for a launch, where `values` are what the plan takes, and `places` say which
        of them is the address of which array.
    complete : bool
        False where something was done that cannot be told by such steps.
    results : list of int, or int
        Numbers of the arrays that the call returned as a tuple, or of the one that it returned.
    """

    def __init__(self, arguments):
        self.known, self.steps, self.complete = list(arguments), [], True

    def __enter__(self):
        _local.recording = self
        return self

    def __exit__(self, *error):
        _local.recording = None

    def place(self, x):
        """Number of an array; None for one that has come from elsewhere."""
        places = [i for i, known in enumerate(self.known) if known is x]
        self.complete = self.complete and bool(places)
        return places[0] if places else None

    def allocated(self, x, *step):
        self.known.append(x)
        self.steps.append(step)

    def launched(self, plan, arguments, values):
        """`arguments` are the arrays and scalars that the kernel was given, `values` their bits."""
        scalars = (np.generic, bool, int, float)
        places = [(i, self.place(x)) for i, x in enumerate(arguments) if not isinstance(x, scalars)]
        self.steps.append(("launch", plan, list(values), places))

    def finish(self, result):
        """This recording, with the numbers of the arrays that the call returned; or False."""
        one = self.place
        self.results = list(map(one, result)) if isinstance(result, tuple) else one(result)
        self.known = None  # nothing of the first call is kept alive
        return self if self.complete else False


def current():
    """The recording that is under way in this thread, or None."""
    return getattr(_local, "recording", None)
