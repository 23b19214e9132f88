#!/usr/bin/python3
"""The three strategies of gradient synchronisation end in the same weights on 1 to 4 ranks, and every rank in the
same bits. Real processes over Gloo, made-up images, small buckets so that DDP has many.

Tolerance: sums over ranks differ by the order of additions alone. Two terms have one order, so on 1 and 2 ranks the
weights of all strategies are equal bit for bit, after any number of steps. A sum of W terms is off by at most (W-1)·eps of
the sum of their sizes (Higham, Accuracy and Stability, 4.2), so after one step weights may differ by 8·W·eps of their
tensor's largest value. Later steps are not compared on more than 2 ranks: a ReLU that falls the other way by such a
rounding moves a gradient by a thousandth (seen at the third step), with any order, in any program.

usage: test_sync.py
"""
import os
import subprocess
import sys
import tempfile

import torch

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cifar import BIN  # noqa: E402
from models import load_safetensors  # noqa: E402

EPS = 2.0**-23


def run(folder, model, sync, world, steps, port):
    ranks = [subprocess.Popen([BIN + "/trainer", "--synthetic", "--model", model, "--width", "1", "--sync", sync, "--rank", str(r),
                               "--world-size", str(world), "--local-world-size", str(world), "--threads", "1", "--master-port", str(port),
                               "--first-bucket-mb", "0.05", "--bucket-mb", "0.5", "--batch-size", "8", "--epochs", "1",
                               "--synthetic-steps", str(steps), "--target-accuracy", "0", "--lr", "0.02",
                               "--save", f"{folder}/{model}.{sync}.{world}.{r}"], stderr=subprocess.PIPE, text=True)
             for r in range(world)]
    for r, p in enumerate(ranks):
        text = p.communicate(timeout=120)[1]
        assert p.returncode == 0, f"{model} {sync} rank {r} of {world}: {text}"
    weights = [load_safetensors(f"{folder}/{model}.{sync}.{world}.{r}") for r in range(world)]
    for r in range(1, world):
        for name, w in weights[0].items():
            assert torch.equal(w, weights[r][name]), f"{model} {sync}: {name} differs on ranks 0 and {r} of {world}"
    return weights[0]


def distance(a, b):
    """The largest difference of any tensor, as a part of the tensor's largest value."""
    return max(((a[n].double() - b[n].double()).abs().max() / b[n].double().abs().max().clamp(min=1e-30)).item() for n in a)


def case(folder, model, world, port):
    steps = 4 if world <= 2 else 1
    found = {s: run(folder, model, s, world, steps, port + i) for i, s in enumerate(("ddp", "allreduce", "gather-scatter"))}
    allowed = 0.0 if world <= 2 else 8 * world * EPS
    far = {s: distance(found[s], found["ddp"]) for s in found}
    for sync, d in far.items():
        assert d <= allowed, f"{model}, {world} ranks: {sync} is {d:.3g} off ddp, allowed {allowed:.3g}"
    print(f"ok {model}, {world} ranks, {steps} steps: all-reduce {far['allreduce']:.2g}, gather-scatter {far['gather-scatter']:.2g} "
          f"off ddp, allowed {allowed:.2g}", flush=True)


def main():
    port = 20000 + os.getpid() % 12000
    with tempfile.TemporaryDirectory(prefix="ddpipe-sync.") as folder:
        for i, model in enumerate(("vgg11", "wideresnet")):
            for world in (1, 2, 3, 4):
                case(folder, model, world, port + 20 * i + 4 * world)
    return 0


if __name__ == "__main__":
    sys.exit(main())
