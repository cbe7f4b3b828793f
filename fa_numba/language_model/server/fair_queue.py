"""Who is next: a queue for each client, and the client that was served least comes first.

With one queue for all, a client that sends a thousand requests lets all others wait for them. Here
each client has a counter of the tokens computed for it. The next request is the oldest one of the
client with the lowest counter. A pause gives a client no advantage: when it comes back, its counter
is raised to the lowest one of those that wait, or, if none waits, to that of the client that was
let in last.

Preempted requests come first of all: pages, or time, were already spent on them.

Paper: Sheng et al. 2024, Fairness in serving large language models, arXiv:2401.00588, algorithm 2.
"""

from collections import deque
from itertools import chain, zip_longest

MAX_CLIENTS = 1000  # whose counters are kept though they ask for nothing


class FairQueue:
    """Requests that wait.

    Attributes
    ----------
    preempted : deque of Request
        In the order in which they come back.
    served : dict of str to int
        Counter of each client.
    """

    def __init__(self):
        self.preempted, self.served = deque(), {}
        self._waiting, self._size = {}, 0  # of each client that waits: a deque; of all of them
        self._last = None  # the client that left the queue last

    def __len__(self):  # also called from other threads, so it does not iterate
        return len(self.preempted) + self._size

    def __iter__(self):
        """About in the order in which they come: one of each client, the least served one first."""
        yield from self.preempted
        clients = sorted(self._waiting, key=self.served.__getitem__)
        rounds = zip_longest(*(self._waiting[client] for client in clients))
        yield from (request for request in chain.from_iterable(rounds) if request is not None)

    def push(self, request):
        """Add a request to the end of its client's queue."""
        client = request.options.client
        if client not in self._waiting:
            others = self._waiting or [self._last]
            lowest = min(self.served.get(other, 0) for other in others)
            self.served[client] = max(self.served.get(client, 0), lowest)
            self._waiting[client] = deque()
        self._waiting[client].append(request)
        self._size += 1

    def push_preempted(self, request):
        """Add a request before all others."""
        self.preempted.appendleft(request)

    def first(self):
        """The request that is next, or None."""
        if self.preempted:
            return self.preempted[0]
        if not self._waiting:
            return None
        return self._waiting[min(self._waiting, key=self.served.__getitem__)][0]

    def remove(self, request):
        """Take a request out of the queue, wherever it is."""
        if request in self.preempted:
            self.preempted.remove(request)
            return
        client = request.options.client
        self._waiting[client].remove(request)
        self._size -= 1
        if not self._waiting[client]:
            del self._waiting[client]
            self._last = client

    def charge(self, request, tokens):
        """Count tokens that were computed for a request's client."""
        self.served[request.options.client] += tokens

    def forget_idle(self, running):
        """Drop the counters of clients that neither wait nor run, if there are many."""
        if len(self.served) <= MAX_CLIENTS:
            return
        busy = self._waiting.keys() | {r.options.client for r in (*running, *self.preempted)}
        self.served = {client: n for client, n in self.served.items() if client in busy}
