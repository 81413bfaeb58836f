"""Read the logs of spec/interop/tensorboard_fit.lua over the HTTP interface of a
TensorBoard that is started on them, and compare with what the fits returned.
Arguments: the logs, the histories as JSON."""
import gzip
import io
import json
import os
import sys
from glob import glob

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
from PIL import Image
from tensorboard_board import Board

folder, numbers = sys.argv[1:3]
history = json.load(open(numbers))
EPOCHS, STEPS = 12, 240


def scalars(board, run, tag):
    return [(s, v) for _, s, v in board.json("scalars/scalars", run=run, tag=tag)]


def check_scalars(board):
    for name, h in history.items():
        for key in ("loss", "accuracy", "auc"):
            for part, prefix in (("train", ""), ("validation", "val_")):
                got = scalars(board, "%s/%s" % (name, part), "epoch_" + key)
                want = [(i + 1, np.float32(v)) for i, v in enumerate(h[prefix + key])]
                assert [(s, np.float32(v)) for s, v in got] == want, (name, part, key, got, want)
        batches = scalars(board, name + "/train", "batch_loss")
        assert [s for s, _ in batches] == list(range(5, STEPS + 1, 5)), batches
        rate = scalars(board, name + "/train", "epoch_learning_rate")
        assert all(v == np.float32(0.01) for _, v in rate) and len(rate) == EPOCHS
        checks = scalars(board, name + "/validation", "evaluation_loss_vs_iterations")
        assert [s for s, _ in checks] == list(range(20, STEPS + 1, 20)), checks


def check_histograms(board):
    for name, units in (("small", 4), ("large", 32), ("cluster", 32)):
        got = board.json("histograms/histograms", run=name + "/train", tag="deeper/kernel/histogram")
        assert [g[1] for g in got] == list(range(1, EPOCHS + 1))
        assert all(sum(b[2] for b in g[2]) == units * units for g in got)


def check_images(board):
    got = board.json("images/images", run="large/train", tag="hidden/kernel/image", sample="0")
    png = board.get("/data/plugin/images/individualImage?" + got[-1]["query"])
    assert Image.open(io.BytesIO(png)).size == (32, 2)


def check_text(board):
    got = board.json("text/text", run=".", tag="about")
    assert "<strong>inside</strong>" in got[0]["text"]


def check_graph(board):
    info = board.json("graphs/info")
    for name in history:
        run = name + "/train"
        assert info[run]["run_graph"], info
        text = board.plugin("graphs/graph", run=run, conceptual="false").decode()
        for node in ("hidden/matmul", "deeper/kernel/read_variable", "gradients/", "adam/", "binary_crossentropy/"):
            assert node in text, (run, node)


def check_hparams(board):
    experiment = board.post("hparams/experiment", {"experimentName": ""})
    assert {h["name"] for h in experiment["hparamInfos"]} == {"units", "learning_rate", "where"}, experiment
    ask = {"experimentName": "", "allowedStatuses": ["STATUS_SUCCESS"], "colParams": [], "startIndex": 0,
           "sliceSize": 10}
    groups = board.post("hparams/session_groups", ask)["sessionGroups"]
    got = {g["sessions"][0]["name"]: (g["hparams"], g["metricValues"]) for g in groups}
    assert set(got) == set(history), got
    for name, (values, metrics) in got.items():
        assert values == {"units": 4 if name == "small" else 32, "learning_rate": 0.01,
                          "where": "cluster" if name == "cluster" else "here"}, values
        assert np.float32(metrics[0]["value"]) == np.float32(history[name]["val_accuracy"][-1]), metrics


def check_timelines():
    for name in history:
        (path,) = glob(folder + "/" + name + "/plugins/profile/*/*.trace.json.gz")
        events = json.load(gzip.open(path))["traceEvents"]
        names = {e["name"] for e in events if e["ph"] == "X"}
        assert {"step 10", "step 20"} <= names, names
        if name == "cluster":
            workers = {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
            assert any(w.startswith("/job:worker") for w in workers) and any("closure" in n for n in names)
        else:
            assert {"matmul", "nn.bias_add_grad", "variables"} <= names
        for e in events:
            assert e["ph"] == "M" or (e["ts"] >= 0 and e["dur"] >= 0), e


with Board(folder, lambda tags: len(tags) >= 6) as board:
    check_scalars(board)
    check_histograms(board)
    check_images(board)
    check_text(board)
    check_graph(board)
    check_hparams(board)
    check_timelines()
print("interop: TensorBoard shows fits: numbers, histograms, images, text, graphs, hyperparameters, over HTTP")
