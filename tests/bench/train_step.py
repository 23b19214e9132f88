#!/usr/bin/python3
"""Training steps of one network, ours and PyTorch's in turn, both on made-up images: images/s and the ratio.

usage: train_step.py [--model vgg11] [--width K] [--batch 128] [--threads 2] [--rounds 5] [--steps 12]

Peer: PyTorch eager in this process's children, the faster of NCHW and channels_last, torch.set_num_threads(threads),
SGD with momentum. A second peer has glibc keep freed memory (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_): without it
PyTorch gives every activation back to the kernel and faults it in again, which costs much on virtual machines.
Prints one JSON line: medians, the median of the ratios round by round, our peak memory.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.environ.get("BIN", os.path.join(HERE, "..", "..", "bin"))
KEEP = dict(MALLOC_TRIM_THRESHOLD_=str(1 << 40), MALLOC_MMAP_THRESHOLD_=str(1 << 30), MALLOC_TOP_PAD_=str(1 << 28))


def peer(a, last):
    import torch
    sys.path.insert(0, os.path.dirname(HERE))
    from models import build
    torch.set_num_threads(a.threads)
    form = torch.channels_last if last else torch.contiguous_format
    net = build(a.model, width=a.width).to(memory_format=form).train()
    opt = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.01, momentum=0.9)
    x, y = torch.randn(a.batch, 3, 32, 32).to(memory_format=form), torch.randint(10, (a.batch,))
    times = []
    for _ in range(a.steps + 2):
        start = time.perf_counter()
        opt.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(net(x), y).backward()
        opt.step()
        times.append(time.perf_counter() - start)
    print(a.batch / statistics.median(times[2:]))


def run_peer(last, extra):
    out = subprocess.run([sys.executable, __file__, "--peer", str(last)] + sys.argv[1:], check=True, stdout=subprocess.PIPE,
                         text=True, env={**os.environ, **extra})
    return float(out.stdout)


def run_ours(a):
    child = subprocess.Popen([BIN + "/trainer", "--synthetic", "--model", a.model, "--width", str(a.width), "--widths", "16,64,128",
                          "--batch-size", str(a.batch), "--threads", str(a.threads), "--epochs", "2", "--synthetic-steps",
                          str(a.steps // 2 + 1), "--target-accuracy", "0", "--lr", "0.01"],
                             stderr=subprocess.PIPE, text=True)
    text = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    assert status == 0, text
    return float(re.findall(r"epoch 2 train: .*?\(([0-9.]+)/s\)", text)[0]), usage.ru_maxrss // 1024


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", default="vgg11")
    p.add_argument("--width", type=int, default=1)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--peer", type=int, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.peer is not None:
        return peer(a, a.peer)
    rows = []
    for _ in range(a.rounds):
        ours, peak_mb = run_ours(a)
        row = dict(ours=ours, nchw=run_peer(0, {}), last=run_peer(1, {}), nchw_keep=run_peer(0, KEEP), last_keep=run_peer(1, KEEP))
        rows.append(row)
        print({k: round(v, 1) for k, v in row.items()}, file=sys.stderr)
    median = lambda k: statistics.median(r[k] for r in rows)
    best = max(("nchw", "last"), key=median)
    best_keep = max(("nchw_keep", "last_keep"), key=median)
    print(json.dumps({
        "model": a.model, "batch": a.batch, "threads": a.threads, "rounds": a.rounds,
        "images_per_sec": round(median("ours"), 1), "pytorch": round(median(best), 1), "pytorch_keep": round(median(best_keep), 1),
        "ratio": round(statistics.median(r["ours"] / r[best] for r in rows), 3),
        "ratio_keep": round(statistics.median(r["ours"] / r[best_keep] for r in rows), 3),
        "peak_mb": peak_mb}))


if __name__ == "__main__":
    main()
