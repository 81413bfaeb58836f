"""Read the logs of spec/interop/tensorboard.lua with TensorBoard's own reader, and over
the HTTP interface of a TensorBoard that is started on them."""
import io
import math
import os
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util
from tensorboard_board import Board

folder = sys.argv[1]
WITHOUT_LIMIT = {k: 0 for k in ("scalars", "histograms", "images", "tensors")}


def load(run):
    a = EventAccumulator(folder + "/" + run, size_guidance=WITHOUT_LIMIT)
    a.Reload()
    return a


def numbers(a, tag):
    return [(t.step, t.value) for t in a.Scalars(tag)]


def strings(a, tag):
    return [tensor_util.make_ndarray(t.tensor_proto) for t in a.Tensors(tag)]


def rows(a, tag):
    """Left edge, right edge and count of each bucket, as TensorBoard's front end gets them."""
    out = []
    for h in (t.histogram_value for t in a.Histograms(tag)):
        left, right = [h.min] + h.bucket_limit[:-1], h.bucket_limit[:-1] + [h.max]
        out.append(np.stack([left, right, h.bucket], 1))
    return out


def check_scalars(a):
    got = numbers(a, "train/loss")
    assert [s for s, _ in got] == list(range(100)), "a cut record, or one of those before it"
    assert all(v == np.float32(1 / (1 + s)) for s, v in got)
    odd = numbers(a, "odd")
    assert math.isnan(odd[0][1]) and odd[1:] == [(1, math.inf), (2, -math.inf), (2**40, 0)]
    assert numbers(a, "имя") == [(1, 2.5)]
    assert abs(a.Scalars("train/loss")[0].wall_time - time.time()) < 600


def check_histograms(a):
    all_, one, odd, none = rows(a, "weights")
    assert all_.shape == (30, 3) and all_[:, 2].sum() == 1000
    assert all_[0, 0] == 0 and all_[-1, 1] == 999
    counts, edges = np.histogram(np.arange(1000), 30)
    np.testing.assert_array_equal(all_[:, 2], counts)
    np.testing.assert_allclose(all_[:, 1], edges[1:])
    assert one[:, 2].sum() == 10 and one[-1].tolist() == [7, 7, 10]
    assert odd.tolist() == [[1, 1.5, 1], [1.5, 2, 1]]
    assert none[:, 2].sum() == 0
    (wide,) = rows(a, "wide")
    assert wide[:, 2].tolist() == [1, 1, 1] and np.isfinite(wide).all()


def check_images(a):
    (w, h, png), = strings(a, "picture")
    assert (w, h) == (b"5", b"4")
    want = [[[10 * y, 20 * x, y * x] for x in range(1, 6)] for y in range(1, 5)]
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(png))), want)
    grey = strings(a, "grey")[0]
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(grey[2]))), [[0, 128], [255, 255], [0, 0]])
    many = strings(a, "many")[0]
    assert len(many) == 7 and Image.open(io.BytesIO(many[6])).mode == "RGBA"
    assert a.summary_metadata["many"].plugin_data.plugin_name == "images"


def check_text(a):
    assert strings(a, "notes")[0].item().decode() == "**bold** имя"
    assert strings(a, "table")[0].tolist() == [[b"a", b"b"], [b"c", b""]]
    assert a.summary_metadata["notes"].plugin_data.plugin_name == "text"


def check_files():
    for i in range(1, 6):
        got = [v for f in sorted(os.listdir(folder + "/many"))
               for v in numbers_of_file(f, "writer%d" % i)]
        assert got == [(s, s * i) for s in range(1, 21)], i
    assert numbers(load("big"), "big") == [(s, s) for s in range(1, 100001)]


def numbers_of_file(name, tag):
    a = load("many/" + name)
    return numbers(a, tag) if tag in a.Tags()["scalars"] else []


def is_ready(tags):
    return "run" in tags and "big" in tags and len(tags["run"]) >= 3


def check_http():
    """The real thing."""
    with Board(folder, is_ready) as board:
        tags = board.json("scalars/tags")
        assert set(tags["run"]) >= {"train/loss", "odd", "имя"}, tags
        want = [[s, np.float32(1 / (1 + s))] for s in range(100)]
        got = board.json("scalars/scalars", run="run", tag="train/loss")
        assert [[s, np.float32(v)] for _, s, v in got] == want, got
        got = board.json("histograms/histograms", run="run", tag="weights")
        assert [g[1] for g in got] == [3, 4, 5, 6]
        got = board.json("images/images", run="run", tag="many", sample="4")
        png = board.plugin("images/individualImage?" + got[0]["query"])
        assert Image.open(io.BytesIO(png)).size == (9, 8)
        got = board.json("text/text", run="run", tag="notes")
        assert "<strong>bold</strong> имя" in got[0]["text"]


run = load("run")
check_scalars(run)
check_histograms(run)
check_images(run)
check_text(run)
check_files()
check_http()
print("interop: TensorBoard reads scalars, histograms, images and text, also over HTTP")
