"""ex08e: what the backward pass costs."""

# fmt: off
FLOPS = "return 2 * product, (4 + 3) * product"
FORWARD = "return N * HEAD_DIM * (1 + 2 * math.ceil(N / BLOCK_M))"
DKDV = "dkdv = both + math.ceil(N / BLOCK_N) * (both + rows)"
BACK = "return both, dkdv, both + rows + math.ceil(N / BLOCK_M) * both"
KEPT = "return N * HEAD_DIM + N"

WRONG = [
    ("one kernel: 5 products", FLOPS, "return 2 * product, 5 * product"),
    ("FLOPs as floats", FLOPS, "return 2.0 * product, 7.0 * product"),
    ("tiles of keys in the forward pass", FORWARD, "return N * HEAD_DIM * (1 + 2 * math.ceil(N / 8))"),
    ("the ragged tile is forgotten", FORWARD, FORWARD.replace("math.ceil(N / BLOCK_M)", "(N // BLOCK_M)")),
    ("stores counted, too", FORWARD, FORWARD + " + N * HEAD_DIM + N"),
    ("lse and delta once in dkdv", DKDV, "dkdv = both + rows + math.ceil(N / BLOCK_N) * both"),
    ("tiles exchanged", DKDV, DKDV.replace("BLOCK_N", "BLOCK_M")),
    ("delta loads out alone", BACK, BACK.replace("return both", "return both // 2")),
    ("the ragged tile is forgotten in dkdv", DKDV, DKDV.replace("math.ceil(N / BLOCK_N)", "(N // BLOCK_N)")),
    ("a list", BACK, "return [both, dkdv, both + rows + math.ceil(N / BLOCK_M) * both]"),
    ("P kept", KEPT, "return N * N"),
    ("m and l kept", KEPT, "return N * HEAD_DIM + 2 * N"),
    ("a loop over tiles of queries", FORWARD, "return N * HEAD_DIM + sum(2 * N * HEAD_DIM for _ in range(0, N, BLOCK_M))"),
    ("a loop over tiles of keys", DKDV, "dkdv = both + sum(both + rows for _ in range(0, N, BLOCK_N))"),
    ("128 columns at most", KEPT, "return N * min(HEAD_DIM, 128) + N"),
    ("tiles of 64 at most", FORWARD, FORWARD.replace("BLOCK_M", "min(BLOCK_M, 64)")),
    ("32 bits", KEPT, "return (N * HEAD_DIM + N) % 2**32"),
]

RIGHT = [
    ("floor division of negatives", [
        (FORWARD, "return N * HEAD_DIM + 2 * N * HEAD_DIM * -(-N // BLOCK_M)"),
        (DKDV, "dkdv = both - (-N // BLOCK_N) * (both + rows)"), (KEPT, "return N * (HEAD_DIM + 1)")]),
    ("sums by kernel", [(FLOPS, "forward, dkdv, dq = 2, 4, 3\n    return forward * product, (dkdv + dq) * product"),
        (BACK, "dq = N * HEAD_DIM * 2 + 2 * N + math.ceil(N / BLOCK_M) * (N * HEAD_DIM * 2)\n    return N * HEAD_DIM * 2, dkdv, dq")]),
]

EQUIVALENT = []
