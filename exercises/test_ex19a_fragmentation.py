"""Grader of ex19a: the waste of contiguous arrays and of pages, against the package's simulator."""

import pytest

from fa_numba.kv_cache import PagePool, random_trace, serve_contiguous
from fa_numba.kv_cache.waste import reservations
from fa_numba.workbook.graders.causes import Wrong

MAX_LEN = 256
TRACE = random_trace(60, mean_prompt=20, mean_answer=40, max_len=MAX_LEN)
HUGE = (1, 10**9)  # ends a trace: it never fits


def kinds_by_the_simulator(trace, reserve, num_slots):
    """(tokens, later, never) that the simulator saw while it served the trace to its end."""
    steps = sum(final - prompt for prompt, final in trace)  # one after the other, at worst
    usage = serve_contiguous(
        [*trace, HUGE],
        num_slots,
        lambda prompt, final: reserve(prompt, final) if final < HUGE[1] else num_slots + 1,
        steps=steps,
        warm_up=0,
    )
    tokens, later, never, _ = (share * num_slots * steps for share in usage.shares.values())
    return round(tokens), round(later), round(never)


def expect(got, want, what):
    got, want = tuple(got), tuple(want)
    if got == want:
        return
    (n, later, never), (my_n, my_later, my_never) = want, got
    causes = {
        "The first step has prompt + 1 tokens, and the last one has final.": my_never == never
        and my_n < n
        and my_n + my_later == n + later,
        "`later` and `never` are exchanged.": got == (n, never, later),
        "A slot that will have a token is counted as one that never will.": my_n == n
        and my_later == later
        and my_never == later + never,
        "A request cannot use later what it does not hold.": my_n == n and my_later > later,
        "The slots of all steps are added up: no mean, and no share.": 0 < my_n < n
        and my_later * n == later * my_n
        and my_never * n == never * my_n,
    }
    names = zip(("tokens", "later", "never"), got, want, strict=True)
    first = next(name for name, x, y in names if x != y)
    raise Wrong(
        f"{what}: (tokens, later, never) must be {want}, got {got}: `{first}` is the first that is "
        "wrong",
        causes=[cause for cause, is_so in causes.items() if is_so],
        where=first,
    )


@pytest.mark.parametrize(
    "n, page_size, want",
    [(1, 16, 16), (16, 16, 16), (17, 16, 32), (5, 1, 5), (1000, 300, 1200), (0, 4, 0)]
    + [(2**60 + 1, 2**40, 2**60 + 2**40)],
)
def test_paged(exercise, n, page_size, want):
    """paged counts whole pages"""
    got = exercise.paged(n, page_size)
    if got != want:
        known = {
            "A part-filled page is held as a whole: round up.": n // page_size * page_size,
            "Where the last page is full there is no further one.": want + page_size,
            "Slots are wanted, not pages.": want // page_size,
        }
        raise Wrong(
            f"tokens: {n}, in pages of {page_size}, hold {want} slots, got {got}",
            causes=[cause for cause, number in known.items() if number == got],
        )


def test_one_request_by_hand(exercise):
    """usage: one request, by hand"""
    got = exercise.usage([(3, 6)], lambda prompt, n, final: 8)
    expect(got, (4 + 5 + 6, 2 + 1 + 0, 2 + 2 + 2), "(3, 6) in 8 slots")


def test_the_prompt_alone_is_no_step(exercise):
    """usage: the steps begin with prompt + 1 tokens and end with final"""
    seen = []
    exercise.usage([(3, 6)], lambda prompt, n, final: seen.append((prompt, n, final)) or 6)
    want = [(3, 4, 6), (3, 5, 6), (3, 6, 6)]
    assert sorted(set(seen)) == want, f"held must be asked for {want}, was asked for {seen}"


def test_oracle(exercise):
    """usage: an array of just the right size wastes nothing for ever, and something for a while"""
    tokens, later, never = exercise.usage([(2, 5)], lambda prompt, n, final: final)
    assert (tokens, later, never) == (12, 3, 0), (
        f"5 slots hold 3, 4, 5 tokens: 12 and 3 later, 0 never; got {(tokens, later, never)}"
    )
    assert all(type(x) is int for x in (tokens, later, never)), "three ints"


def test_arguments_unchanged(exercise):
    """usage leaves the trace as it is"""
    trace = [(3, 6), (1, 2)]
    exercise.usage(trace, lambda prompt, n, final: 8)
    assert trace == [(3, 6), (1, 2)], f"the trace was [(3, 6), (1, 2)], and is now {trace}"


def test_trace_is_a_sum(exercise):
    """usage: a trace is the sum of its requests"""

    def held(prompt, n, final):
        return prompt + 2 * n

    whole = exercise.usage(TRACE, held)
    parts = [exercise.usage([request], held) for request in TRACE]
    expect(whole, [sum(kind) for kind in zip(*parts, strict=True)], "all requests together")
    expect(exercise.usage([], held), (0, 0, 0), "no request at all")
    many = exercise.usage([(1, 3)] * 300, lambda prompt, n, final: 4)
    expect(many, (300 * 5, 300 * 1, 300 * 2), "300 requests (1, 3) in 4 slots each")


@pytest.mark.parametrize("room", [MAX_LEN, 3 * MAX_LEN, 60 * MAX_LEN], ids=["one", "few", "all"])
@pytest.mark.parametrize("name", ["the maximum", "a power of two", "an oracle"])
def test_agrees_with_the_simulator(exercise, name, room):
    """usage agrees with the simulator, slot for slot, in a crowded memory and in an empty one"""
    reserve = reservations(MAX_LEN)[name]
    got = exercise.usage(TRACE, lambda prompt, n, final: reserve(prompt, final))
    expect(got, kinds_by_the_simulator(TRACE, reserve, room), f"{name}, {room} slots of memory")


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_agrees_with_the_pool(exercise, page_size):
    """usage of pages agrees with a PagePool that serves the trace"""
    want = [0, 0, 0]
    for prompt, final in TRACE[:20]:
        pool = PagePool(-(-final // page_size), page_size)
        seq, _ = pool.allocate([0] * prompt)
        for n in range(prompt + 1, final + 1):
            pool.append({seq: [0]})
            held = len(pool.pages(seq)) * page_size
            used = min(held, final)
            want = [a + b for a, b in zip(want, (n, used - n, held - used), strict=True)]
    got = exercise.usage(TRACE[:20], lambda prompt, n, final: exercise.paged(n, page_size))
    expect(got, want, f"pages of {page_size}")


def test_pages_waste_less_than_one_page(exercise):
    """waste of pages: never a whole page of a request"""
    for page_size in (1, 2, 16, 64):
        tokens, later, never = exercise.usage(
            TRACE, lambda prompt, n, final, size=page_size: exercise.paged(n, size)
        )
        steps = sum(final - prompt for prompt, final in TRACE)
        assert later + never <= steps * (page_size - 1), (
            f"pages of {page_size}: at most {page_size - 1} empty slots in each of {steps} steps"
        )


def test_the_claim(exercise):
    """60 to 80 %: true of the maximum on a trace of chats with 2048 tokens at most, not of pages"""
    trace = random_trace(300)

    def waste(held):
        tokens, later, never = exercise.usage(trace, held)
        return (later + never) / (tokens + later + never)

    wasted = {
        "the maximum": waste(lambda prompt, n, final: 2048),
        "pages of 16": waste(lambda prompt, n, final: exercise.paged(n, 16)),
    }
    assert 0.6 <= wasted["the maximum"] <= 0.8, f"want 60 to 80 %, got {wasted['the maximum']:.1%}"
    assert wasted["pages of 16"] <= 0.03, f"want at most 3 %, got {wasted['pages of 16']:.1%}"
