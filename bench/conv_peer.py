"""What conv.lua measures, by PyTorch.  usage: conv_peer.py THREADS [last] [cpu]

"last" keeps the channels last, as tidemill does; without it PyTorch's default order.  "cpu":
by the processor's time.
"""
import json
import sys
import time

import torch
import torch.nn.functional as F

torch.set_num_threads(int(sys.argv[1]))
order = torch.channels_last if "last" in sys.argv else torch.contiguous_format
clock = time.process_time if "cpu" in sys.argv else time.time

SHAPES = [(64, 28, 28, 1, 32, 3, 1), (64, 14, 14, 32, 64, 3, 1), (32, 32, 32, 64, 64, 3, 1),
          (32, 16, 16, 128, 128, 3, 1), (16, 56, 56, 64, 64, 1, 1), (8, 112, 112, 3, 32, 7, 2)]


def least(fn):
    """The least time of one call, of several rounds."""
    best = float("inf")
    fn()
    for _ in range(5):
        n, t = 0, clock()
        while clock() - t < 0.15 or n == 0:
            fn()
            n += 1
        best = min(best, (clock() - t) / n)
    return best


def result(**fields):
    print("RESULT " + json.dumps({k: v if isinstance(v, str) else float("%.6g" % v) for k, v in fields.items()}))


for n, h, w, c, co, k, stride in SHAPES:
    x = torch.randn(n, c, h, w).to(memory_format=order).requires_grad_()
    f = torch.randn(co, c, k, k).to(memory_format=order).requires_grad_()

    def forward():
        return F.conv2d(x, f, stride=stride, padding=k // 2)

    def both():
        x.grad = f.grad = None
        forward().sum().backward()

    with torch.no_grad():
        ahead = least(lambda: forward().sum())
        work = 2 * forward().numel() * k * k * c
    total = least(both)
    result(bench="conv", shape="%dx%dx%dx%d-%d k%d s%d" % (n, h, w, c, co, k, stride), forward_ms=1e3 * ahead,
           all_ms=1e3 * total, forward_gflops=work / ahead / 1e9, all_gflops=3 * work / total / 1e9)

x = torch.randn(64, 32, 28, 28).to(memory_format=order).requires_grad_()


def through(fn):
    x.grad = None
    fn(x).sum().backward()


for name in ("max_pool2d", "avg_pool2d"):
    result(bench=name, shape="64x28x28x32 2x2", all_ms=1e3 * least(lambda: through(lambda v: getattr(F, name)(v, 2))))
result(bench="batch_norm", shape="64x28x28x32", all_ms=1e3 * least(lambda: through(torch.nn.BatchNorm2d(32))))
