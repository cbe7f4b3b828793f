"""The order between blocks that a fence and an atomic make.

A thread stores, calls cuda.threadfence(), and says by an atomic that it is done. A block whose
own atomic comes later may use what was stored: so does the last block to draw a ticket, which
adds up what the others have left.
"""

import numpy as np

from .shadow import thread_of

FENCED = -1  # behind a fence, but no atomic has said so


class Fences:
    """Which stores of which blocks have been heard of.

    Atomics are numbered as they happen, those of one statement in the order of their threads.
    """

    def __init__(self, num_threads, num_blocks):
        self.num_threads = num_threads
        self.heard = np.zeros(num_blocks, np.int64)  # the number of each block's last atomic
        self.said = {}  # Shadow -> for each element FENCED, the writer's atomic, or 0
        self.number = 0
        self.waiting = False  # is anything FENCED?

    def fence(self, threads, shadows):
        """Let some threads of the grid fence what they have changed."""
        for shadow in shadows:
            said = self.said.setdefault(shadow, np.zeros(shadow.size, np.int64))
            for field in (shadow.writer, shadow.updater):
                if field is not None:
                    said[np.isin(thread_of(field), threads) & (said == 0)] = FENCED
        self.waiting = True

    def changed(self, shadow, elements):
        """Note that elements hold something new, behind no fence."""
        if shadow in self.said:
            self.said[shadow][elements] = 0

    def atomic(self, threads):
        """Let some threads of the grid make an atomic, in this order."""
        numbers = self.number + 1 + np.arange(len(threads), dtype=np.int64)
        self.number += len(threads)
        blocks = threads // self.num_threads
        self.heard[blocks] = numbers
        if not self.waiting:
            return
        self.waiting = False
        by_block = np.zeros_like(self.heard)
        by_block[blocks[::-1]] = numbers[::-1]  # the first of each block
        for shadow, said in self.said.items():
            fenced = np.flatnonzero(said == FENCED)
            writer = np.zeros_like(fenced)
            for field in (shadow.updater, shadow.writer):
                if field is not None:
                    writer = np.where(field[fenced], thread_of(field[fenced]), writer)
            number = by_block[writer // self.num_threads]
            said[fenced] = np.where(number, number, FENCED)
            self.waiting |= not number.all()

    def unordered(self, clash, shadow, elements, now):
        """Return a clash without what a fence and two atomics have ordered."""
        if shadow not in self.said:
            return clash
        said = self.said[shadow][elements[clash.positions]]
        heard = self.heard[thread_of(now[clash.positions]) // self.num_threads]
        return clash.where((said <= 0) | (said >= heard))
