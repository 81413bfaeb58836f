"""Compare what tidemill wrote (spec/interop/safetensors.lua), and write a file for it."""
import json
import sys

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

folder = sys.argv[1]
got = load_file(folder + "/checkpoint/data-00000.safetensors")
for i, dtype in enumerate(["float32", "float64", "int32", "int64", "uint8"]):
    want = np.arange(12).reshape(3, 4).astype(dtype) + np.array(i + 1).astype(dtype)
    assert got[dtype].dtype == want.dtype, dtype
    np.testing.assert_array_equal(got[dtype], want)
np.testing.assert_array_equal(got["bool"], [True, False, True])
assert got["scalar"].shape == () and got["scalar"] == 0.5
assert got["empty"].shape == (0, 3)
np.testing.assert_array_equal(got["имя .S с пробелом"], [1, 2])
with safe_open(folder + "/checkpoint/data-00000.safetensors", "np") as f:
    assert len(list(f.keys())) == len(got)



def read(path):
    """All tensors of a checkpoint of several files, put together by its index."""
    index = json.load(open(path + "/checkpoint.json"))
    files = [load_file(path + "/" + f["name"]) for f in index["files"]]
    out = {}
    for name, t in index["tensors"].items():
        parts = [files[s["file"]][s["entry"]] for s in t["shards"]]
        x = parts[0] if len(parts) == 1 else np.concatenate(parts)
        x = x.reshape(t["shape"]).copy()
        for p in t.get("patches", []):
            x[files[p["file"]][p["ids"]]] = files[p["file"]][p["rows"]]
        out[name] = x
    return index, out


table = np.arange(400, dtype=np.float32).reshape(100, 4)
index, got = read(folder + "/ps/ckpt-1")
assert len(index["files"]) == 3 and len(index["tensors"]["table"]["shards"]) == 3
np.testing.assert_array_equal(got["table"], table)
np.testing.assert_array_equal(got["dense"], [1, 2, 3, 4])
np.testing.assert_array_equal(got["flags"], [True, False, True])
assert got["count"] == 7
index, got = read(folder + "/ps/ckpt-2")
assert index["version"] == 2 and len(index["tensors"]["table"]["patches"]) == 3
table[[0, 33, 34, 99]] = -1
np.testing.assert_array_equal(got["table"], table)
np.testing.assert_array_equal(got["dense"], [2, 3, 4, 5])
print("ok - and those of a checkpoint that ps wrote, whole and by rows")

save_file(
    {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array([True, False]),
        "c": np.array(7, dtype=np.int64),
        "half": np.ones(3, dtype=np.float16),
        "none": np.zeros((0, 2), dtype=np.float64),
        "имя": np.array([1, 2, 3], dtype=np.uint8),
    },
    folder + "/python.safetensors",
    metadata={"who": "python"},
)
print("ok - the Python package reads our files")
