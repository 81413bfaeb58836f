"""Writes spec/fuzz/corpus/task: a record of each kind of frame that a task takes; and the
letters of spec/fuzz/corpus/control, in the form of today (test_cluster_control.c looks).

    python3 spec/fuzz/corpus.py

See fuzz_task.c and fuzz_control.c for the form of an input.
"""
import pathlib
import struct

HERE = pathlib.Path(__file__).parent / "corpus"
PS, WORKER, REPLICAS, COPY = 0, 1, 2, 4
CONTROL, DATA = 0, 1
F32, UINT8 = 1, 5


def pack(v):
    if v is None:
        return b"\xc0"
    if isinstance(v, bool):
        return b"\xc3" if v else b"\xc2"
    if isinstance(v, int):
        return bytes([v]) if 0 <= v < 128 else b"\xd3" + struct.pack(">q", v)
    if isinstance(v, bytes):
        return b"\xc4" + bytes([len(v)]) + v
    if isinstance(v, str):
        return b"\xd9" + bytes([len(v)]) + v.encode()
    return b"\xdc" + struct.pack(">H", len(v)) + b"".join(pack(x) for x in v)


def record(kind, door, meta, payload=b""):
    meta = meta if isinstance(meta, bytes) else pack(meta)
    payload += bytes(-len(payload) % 64)
    return struct.pack("<BBHB", kind, door, len(meta), len(payload) // 64) + meta + payload


def write(name, mode, *records):
    HERE.joinpath("task").mkdir(exist_ok=True)
    HERE.joinpath("task", name).write_bytes(bytes([mode]) + b"".join(records))


def segment(b):
    return [True, UINT8, [len(b)]], b


def floats(n):
    return struct.pack(f"<{n}f", *range(n))


def letter(name, fields):
    """Half metadata, half payload: what it holds is inline."""
    HERE.joinpath("control", name).write_bytes(pack(fields) + bytes(len(pack(fields))))


inline = [False, [F32, [4, 2], floats(8)]]
closure = [1, 1, 1, 1, 1, 5, 6, True, [inline, 7], [1, 1, 0, 3]]
letter("closure", closure)
letter("completion", [1, None, 0, 0, 0, 0, [1, 0], [inline]])
letter("failed", [1, [-3, 0, "no", "", ""], 0, 0, 0, 0, [], []])
HERE.joinpath("control", "start").write_bytes(pack([1, 2, 1, 3, 0, 0, 0, 0, 0, 0, False, ["a:1", "b:2"]]))

snapshot = record(23, DATA, [[[1, 0, 0, "", 7, 0], [2, 0, 0, "", 0, 0], [1, 0, 5, "m", 0, 0]], [1, 2]])
request = HERE.joinpath("ps", "request").read_bytes()
n = request[0] | request[1] << 8
update = record(16, DATA, request[2:2 + n], request[2 + n:])

write("requests", PS, update, record(21, DATA, b""), record(20, DATA, 1), record(19, DATA, [1, 0]), update)
write("rounds", PS, update, record(72, DATA, [1, [1, 2]]), update, record(72, DATA, [1, [1]]))
write("snapshot", PS, update, snapshot, record(27, DATA, [1, 0, 0, 64]), record(27, DATA, [1, -1, 0, 0]),
      record(27, DATA, [1, 1, 0, 8]), record(29, DATA, 1))
write("increment", PS, snapshot, update, record(23, DATA, [[[1, 0, 0, "", 8, 7]], [1]]),
      record(27, DATA, [2, 1, 0, 64]), record(27, DATA, [2, 0, 0, 64]), record(29, DATA, 2))
write("save", PS, snapshot,
      record(25, DATA, [1, "/nowhere", "d", "probe", ["a", "b", None], [None, 0, None, 0, None, 0]]),
      record(29, DATA, 1))
write("load", PS, record(30, DATA, ["/nowhere", 10, 20, True, [["a", 0, 4, 1, 0, -1, 0, 0]]]),
      record(30, DATA, [1, 0, -1, 0, 1, F32, [2, 2]], floats(4)), record(30, DATA, [1, 0, 0, 5, 0, F32, [4, 2]], floats(8)),
      record(71, DATA, [[1, 2], [1, 3]]))
write("lanes", PS | REPLICAS, update, record(49, CONTROL, [0, 2, False, None]), record(64, DATA, 0), update,
      record(49, CONTROL, [0, 3, True, None]), record(49, CONTROL, [4, 1, True, None]), record(64, DATA, 4))
spec = [9, 0, F32, [4, 2], [4, 2], 0, True, "zeros", 0, 0, 0, None]
write("copy", PS | REPLICAS | COPY, record(67, DATA, [3, [4, 1, 5, 2], [6], [7, 8]]),
      record(68, DATA, [[spec], [5, 0]], floats(8) + floats(8)), update, record(69, DATA, b""),
      record(49, CONTROL, [1, 4, False, None]), update)
write("terms", PS, record(42, CONTROL, b""), update, record(42, CONTROL, b""),
      record(32, CONTROL, [0, 1, 1, 5, 6, 10 ** 9, 10 ** 10, 10 ** 9, 0, 1, False, []]),
      record(49, CONTROL, [0, 1, True, None]),
      record(32, CONTROL, [0, 1, 1, 5, 6, 10 ** 9, 10 ** 10, 10 ** 9, 0, 1, True, []]))

chain = HERE.joinpath("dataset", "chain").read_bytes()
graph = HERE.joinpath("graph", "sample").read_bytes()
said, b = segment(chain)
iterator = record(35, CONTROL, [1, 5, 0, 0, 0, said], b)
write("worker", WORKER, iterator, record(200, CONTROL, graph), record(45, CONTROL, [1, True]),
      record(200, CONTROL, graph), record(44, CONTROL, 0), record(45, CONTROL, [2, False]), record(38, CONTROL, 1),
      record(36, CONTROL, 1), record(42, CONTROL, b""))
write("iterator", WORKER, record(35, CONTROL, [2, 5, 3, 1, 0, said], b), record(36, CONTROL, 2),
      record(34, CONTROL, HERE.joinpath("control", "variable").read_bytes()))
write("dealt", WORKER, record(35, CONTROL, [1, 5, 0, 0, 1, said], b), record(200, CONTROL, graph),
      record(38, CONTROL, 1), record(36, CONTROL, 1))
said, b = segment(graph)
write("resource", WORKER, record(48, CONTROL, [3, [[11, F32, [2, 2], True, "v", [-1, 0, 2]]], said], b),
      record(36, CONTROL, 3), record(37, CONTROL, closure))
