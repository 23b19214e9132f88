#!/usr/bin/env python3
"""Training steps of the networks in PyTorch on this GPU: the peer of check.sh's measurements.

usage: torch_bench.py [--models wideresnet,vgg11] [--precisions bf16,tf32] [--batches 64,128,…] [--seconds S]

The fastest ways that PyTorch offers without a library beside it: channels_last, cudnn.benchmark, fused SGD with momentum,
bf16 by autocast or TF32 products, torch.compile(mode="reduce-overhead"), which records CUDA graphs; and, since that takes
up to a minute to compile, before it the same without ("eager"). Images are made up and stay on the device. One JSON line a
result, as soon as it is there: model, precision, batch, mode, images_per_sec. Ends in time for --seconds: what is
missing then was not measured. The first line names versions.
"""
import argparse
import json
import os
import sys
import time

import torch
import torch.nn.functional as F

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from models import build  # noqa: E402

WIDTH, DROPOUT = 10, 0.01  # of wideresnet, as the trainer's defaults


def make_step(model, precision, batch, mode):
    torch.manual_seed(0)
    net = build(model, width=WIDTH, dropout=DROPOUT).cuda().to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, fused=True)
    forward = torch.compile(net, mode="reduce-overhead") if mode == "compile" else net
    x = torch.randn(batch, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(10, (batch,), device="cuda")

    def step():
        if mode == "compile":
            torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            loss = F.cross_entropy(forward(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def timed(step, count):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / count


def measure(step, batch):
    """Images/s: after a warm-up the fastest of three stretches of a quarter of a second."""
    timed(step, 5)
    count = max(3, int(0.25 / timed(step, 3)))
    return batch / min(timed(step, count) for _ in range(3))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--models", default="wideresnet,vgg11")
    p.add_argument("--precisions", default="bf16,tf32")
    p.add_argument("--batches", default="512,128,64,256,1024")
    p.add_argument("--seconds", type=float, default=1e9)
    a = p.parse_args()
    began = time.perf_counter()
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    print(json.dumps(dict(torch=torch.__version__, cudnn=torch.backends.cudnn.version(),
                          device=torch.cuda.get_device_name())), flush=True)
    failed = False
    for mode in ("eager", "compile"):
        for precision in a.precisions.split(","):
            for batch in map(int, a.batches.split(",")):
                for model in a.models.split(","):
                    if time.perf_counter() - began > a.seconds:
                        return failed
                    row = dict(model=model, precision=precision, batch=batch, mode=mode)
                    try:
                        row["images_per_sec"] = round(measure(make_step(model, precision, batch, mode), batch), 1)
                    except Exception as e:  # one that cannot be compiled does not end the rest
                        row["error"] = str(e).splitlines()[0][:200] if str(e) else type(e).__name__
                        failed = True
                    print(json.dumps(row), flush=True)
                    torch._dynamo.reset()
                    torch.cuda.empty_cache()
    return failed


if __name__ == "__main__":
    sys.exit(main())
