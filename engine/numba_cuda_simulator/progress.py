"""How far a launch has come: a launch that will take more than a minute says so.

A launch runs batch by batch, and in each batch mostly in one loop around all others. The
share of them that is done gives the time that the others will take. Short launches lose nothing:
the clock is read once per batch, and in the outermost loop after ever more iterations.

The clock counts processor time, which other programs do not use up. A message states the time of
the wall clock: longer by the share that other programs have taken so far.
"""

import itertools
import sys
import time

LONG = 60  # seconds that a launch may take without a word
FIRST_LOOK = 1  # seconds after which its length is estimated
EARLY_LOOK = 0.1  # the same, where the launch may go on in the second gear
GUESS = 5  # a launch of unknown length is taken to need 5 times the time that it has taken
STEP = 0.05  # seconds that a piece of a loop should take
REDRAW = 0.5  # seconds between two drawings of the bar
WIDTH = 30  # of the bar, in characters
LEAVES = 2  # a loop's `exits` if it may be left before its end, so that its length says nothing
MOST_LOOPS = 64  # outermost ones of a batch; if there are more, a while loop is around them


class Progress:
    """Watches the clock for one launch.

    Parameters
    ----------
    name : str
        Of the kernel.
    total : int
        How many thread blocks there are.
    num_threads : int
        Of a block.
    gear : second_gear.Gear or None
        Is told how long the launch will take, and may end it.
    """

    def __init__(self, name, total, num_threads, gear=None):
        self.name, self.total, self.num_threads = name, total, num_threads
        self.done, self.share = 0.0, 1.0  # of the launch: before the present batch, and in it
        self.gear = gear
        self.first_look = FIRST_LOOK if gear is None else EARLY_LOOK
        self.in_loop = False  # are we in the loop whose turns are watched?
        self.loops = 0  # of this batch, so far
        self.announced = self.drawn = False
        self.began = self.drawn_at = time.monotonic()
        self.spent = self.start = time.process_time()
        self.before = 0.0  # what was done then

    def batch(self, first, count):
        """Begin a batch of thread blocks."""
        self.done, self.share, self.loops = first / self.total, count / self.total, 0
        now = time.process_time()
        if first == count:  # the first batch was slow: it brought everything into the caches
            self.start, self.before = now, self.done
        elif now - self.start > self.first_look:
            self.look(0.0, now)

    def turns(self, numbers):
        """Return the numbers of a range, and see how long they take if no loop is around this."""
        if self.in_loop or self.loops == MOST_LOOPS or len(numbers) < 2:
            return numbers
        self.loops += 1
        return itertools.chain.from_iterable(self.pieces(numbers))

    def pieces(self, numbers):
        self.in_loop = True
        try:
            at, size, now = 0, 1, time.process_time()
            while at < len(numbers):
                yield numbers[at : at + size]
                at += size
                began, now = now, time.process_time()
                if at == 1 and not self.done and not self.before:  # the first turn was slow, too
                    self.start, self.before = now, self.share / len(numbers)
                size = size * 4 if now - began < STEP else max(1, size // 4)
                if now - self.start > self.first_look:
                    self.look(min(1.0, at / len(numbers)), now)
        finally:
            self.in_loop = False

    def look(self, part, now):
        """Say how long it will take, or how far it is; part: how much of the batch is done."""
        done = self.done + part * self.share
        if done <= self.before:
            return
        whole = (now - self.start) / (done - self.before)
        self.shift(whole)
        wall = time.monotonic()
        whole *= max(1.0, (wall - self.began) / (now - self.spent))
        if not self.announced:
            if whole > LONG and wall - self.began > FIRST_LOOK:
                self.announced = True
                self.say(
                    f"{self.name} with {self.total * self.num_threads:,} threads will take about "
                    f"{duration(whole)} on the CPU\n"
                )
        elif wall - self.drawn_at > REDRAW and is_watched(sys.stderr):
            self.drawn, self.drawn_at = True, wall
            bar = ("#" * int(WIDTH * done)).ljust(WIDTH, ".")
            left = duration(whole * (1 - done))
            self.say(f"\r[{bar}] {100 * done:.0f} %, about {left} left   ")

    def uncounted(self, numbers, whiles):
        """Return the numbers of a range in which the launch may spend any part of its time."""
        return numbers if self.gear is None else self.noted(numbers, whiles)

    def noted(self, numbers, whiles):
        for number in numbers:
            yield number
            self.turn(whiles)

    def turn(self, whiles):
        """Note a turn of a while loop, whose length nobody knows: it is guessed.

        whiles : the `Patience` of each that is running. Only here it is seen that one never ends.
        """
        if self.gear is not None and all(patience.changes for patience in whiles):
            spent = time.process_time() - self.spent
            if spent > EARLY_LOOK:
                self.shift(GUESS * spent, known=False)

    def shift(self, whole, known=True):
        """Offer the launch to the second gear, and leave out the time that it takes to refuse."""
        if self.gear is not None:
            before = time.process_time()
            self.gear.consider(whole, known)
            self.start += time.process_time() - before

    def end(self):
        """Take the bar away."""
        if self.drawn:
            self.say("\r".ljust(WIDTH + 40) + "\r")

    @staticmethod
    def say(text):
        sys.stderr.write(text)
        sys.stderr.flush()


def is_watched(stream):
    """Tell whether somebody sees what is drawn over: in a terminal or a notebook."""
    return stream.isatty() or type(stream).__module__.startswith("ipykernel")


def duration(seconds):
    """Return a time in the unit that suits it."""
    for unit, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} seconds"
