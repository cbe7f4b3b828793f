"""ex21f: the gradients of ring attention."""

FORWARD = "out, lse, _ = forward(comm, q, kv, attend, merge)"
RETURN = "return out, *backward(comm, dout, (q, kv, out, lse), attend_grad)"

WRONG = [
    ("as published", [(FORWARD, "out, lse, saved = forward(comm, q, kv, attend, merge)\n    kept = saved"), (RETURN, "return out, *backward(comm, dout, kept, attend_grad)")]),
    ("one rank further", [(FORWARD, "out, lse, saved = forward(comm, q, kv, attend, merge)\n    kv = comm.send_recv(saved[1], (comm.rank - 1) % comm.world_size, (comm.rank + 1) % comm.world_size)")]),
    ("the keys of rank 0", RETURN, "kv = comm.all_gather(kv)[0]\n    " + RETURN),
    ("q for dout", RETURN, RETURN.replace("dout,", "q,")),
    ("no lse", RETURN, RETURN.replace("out, lse)", "out, 0 * lse)")),
    ("no delta", RETURN, RETURN.replace("out, lse)", "0 * out, lse)")),
    ("keys and values exchanged", RETURN, RETURN.replace("(q, kv,", "(q, kv[::-1].copy(),")),
    ("gradients of its own keys alone", RETURN, "dq, dkv = attend_grad(dout, q, kv, out, lse, comm.rank, comm.rank)\n    return out, dq, dkv"),
    ("dkv one rank further", RETURN, "dq, dkv = backward(comm, dout, (q, kv, out, lse), attend_grad)\n    return out, dq, comm.send_recv(dkv, (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size)"),
    ("dkv summed over ranks", RETURN, "dq, dkv = backward(comm, dout, (q, kv, out, lse), attend_grad)\n    return out, dq, comm.all_reduce(dkv)"),
    ("no out", RETURN, RETURN.replace("return out, *", "return ")),
    ("the whole forward pass once more", FORWARD, FORWARD + "\n    " + FORWARD + "\n    " + FORWARD),
    ("q is overwritten", FORWARD, FORWARD + "\n    q += 0.5"),
    ("right on four ranks at most", FORWARD, "own = kv\n    out, lse, (q, kv, *_) = forward(comm, q, kv, attend, merge)\n    kv = own if comm.world_size < 5 else kv"),
]  # fmt: skip

RIGHT = [
    ("the keys sent home", [
        (FORWARD, "out, lse, saved = forward(comm, q, kv, attend, merge)\n    kv = comm.send_recv(saved[1], (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size)"),
    ]),
    ("saved, mended", [
        (FORWARD, "out, lse, saved = forward(comm, q, kv, attend, merge)\n    saved = (saved[0], kv, *saved[2:])"),
        (RETURN, "dq, dkv = backward(comm, dout, saved, attend_grad)\n    return out, dq, dkv"),
    ]),
    ("a copy kept before", [(FORWARD, "own = kv.copy()\n    out, lse, _ = forward(comm, q, kv, attend, merge)"), (RETURN, RETURN.replace("(q, kv,", "(q, own,")),]),
]  # fmt: skip

EQUIVALENT = []
