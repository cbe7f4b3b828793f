"""ex22c: the gradient of a tied embedding."""

SYMBOL = "symbol = cuda.blockIdx.x"
COLS = "for d in range(cuda.threadIdx.x, last.shape[1], NUM_THREADS):"
ACC = "acc = float32(0.0)"
ROWS = "for row in range(tokens.shape[0]):"
PRODUCT = "acc += dlogits[row, symbol] * last[row, d]"
IF = "if tokens[row] == symbol:"
LOOKUP = "acc += dx0[row, d]"
STORE = "dembedding[symbol, d] = acc"

WRONG = [
    ("the lookup alone", PRODUCT, "acc += float32(0.0)"),
    ("the product alone", LOOKUP, "acc += float32(0.0)"),
    ("the last of several rows", LOOKUP, "found = row\n" + 12 * " " + "acc = acc if row > 1 else acc + dx0[found, d]"),
    ("the first of several rows", [(ACC, ACC + "\n        found = False"), (LOOKUP, "acc += float32(0.0) if found else dx0[row, d]\n                found = True")]),
    ("the mean of several rows", [(ACC, ACC + "\n        n = 0\n        lookup = float32(0.0)"), (LOOKUP, "lookup += dx0[row, d]\n                n += 1"), (STORE, "dembedding[symbol, d] = acc + (lookup / float32(n) if n > 0 else float32(0.0))")]),
    ("scattered, without atomics", [(IF, "if tokens[row] >= 0:"), (LOOKUP, "dembedding[tokens[row], d] += dx0[row, d]")]),
    ("every row", IF, "if tokens[row] >= 0:"),
    ("the row's number for its token", IF, "if row == symbol:"),
    ("last of the symbol's row", PRODUCT, PRODUCT.replace("last[row, d]", "last[symbol % last.shape[0], d]")),
    ("the logits of row 0", PRODUCT, PRODUCT.replace("dlogits[row,", "dlogits[0,")),
    ("minus", LOOKUP, "acc -= dx0[row, d]"),
    ("summed in HBM", [(ACC, "acc = float32(0.0)\n        dembedding[symbol, d] = float32(0.0)"), (STORE, "dembedding[symbol, d] += acc")]),
    ("dx0 is loaded for every symbol", IF, "mine = dx0[row, d]\n            if tokens[row] == symbol and mine == mine:"),
    ("64 columns at most", COLS, "for d in range(cuda.threadIdx.x, min(64, last.shape[1]), NUM_THREADS):"),
    ("512 columns at most", COLS, "for d in range(cuda.threadIdx.x, min(512, last.shape[1]), NUM_THREADS):"),
    ("256 rows at most", ROWS, "for row in range(min(256, tokens.shape[0])):"),
    ("256 symbols at most", STORE, "if symbol < 256:\n            dembedding[symbol, d] = acc"),
    ("threads across the columns", COLS, "for d in range(cuda.threadIdx.x % 8 * 8 + cuda.threadIdx.x // 8, last.shape[1], NUM_THREADS):"),
    ("float64", ACC, "acc = 0.0"),
    ("float64 lookup", PRODUCT, "acc += dlogits[row, symbol] * last[row, d] * 1.0"),
    ("tokens are changed", STORE, STORE + "\n        tokens[0] = symbol"),
    ("the logits of each row's token", "dlogits[row, symbol]", "dlogits[row, tokens[row]]"),
]  # fmt: skip

RIGHT = [
    ("two loops", [(PRODUCT, PRODUCT + "\n        for row in range(tokens.shape[0]):")]),
    ("the token looked at first", [(PRODUCT + "\n            if tokens[row] == symbol:\n                acc += dx0[row, d]", "x = float32(0.0)\n            if tokens[row] == symbol:\n                x = dx0[row, d]\n            acc += x + dlogits[row, symbol] * last[row, d]")]),
    ("backwards", ROWS, "for row in range(tokens.shape[0] - 1, -1, -1):"),
]  # fmt: skip

EQUIVALENT = []
