#!/usr/bin/python3
"""Two ranks, loaders and all, end with the same weights bit for bit after 20 steps, and with those of PyTorch's
DistributedDataParallel (gloo, two processes) on the same batches and first weights.

Tolerance as in test_parity.py: PyTorch's run in float64 is taken as exact, and ours may be at most 10 × as far from
it as PyTorch's own float32 run, or 64·eps·steps of the tensor's largest value where that is nearer.

usage: test_ddp.py TESTBIN DATA
"""
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn import functional as F

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cifar import BIN  # noqa: E402
from models import build, load_safetensors, save_safetensors  # noqa: E402

STEPS, BATCH, WORLD, LR, EPS = 20, 8, 2, 0.01, float(np.finfo(np.float32).eps)
MEAN, STD = "0.4914,0.4822,0.4465", "0.2470,0.2435,0.2616"


def endpoint(folder, rank):
    return f"ipc://{folder}/loader.{rank}"


def loaders(store, folder):
    return [subprocess.Popen([BIN + "/loader", "--store", store, "--rank", str(r), "--world-size", str(WORLD), "--endpoint",
                              endpoint(folder, r), "--batch-size", str(BATCH), "--seed", "5", "--augment", "standard",
                              "--limit-train", "2000", "--limit-val", "100", "--max-steps", str(STEPS)]) for r in range(WORLD)]


def finish(processes):
    codes = [p.wait(timeout=300) for p in processes]
    assert not any(codes), f"exit codes {codes}"


def ours(args, store, folder, port):
    running = loaders(store, folder)
    running += [subprocess.Popen([BIN + "/trainer", "--model", args["name"], "--width", "1", "--dropout", "0", "--endpoint",
                                  endpoint(folder, r), "--rank", str(r), "--world-size", str(WORLD), "--local-world-size",
                                  str(WORLD), "--master-port", str(port), "--lr", str(LR), "--momentum", "0.9",
                                  "--weight-decay", "1e-4", "--mean", MEAN, "--std", STD, "--max-steps", str(STEPS),
                                  "--target-accuracy", "0", "--init", folder + "/init", "--save", f"{folder}/after.{r}"],
                                 stderr=subprocess.DEVNULL) for r in range(WORLD)]
    finish(running)
    return [load_safetensors(f"{folder}/after.{r}") for r in range(WORLD)]


def torch_rank(rank, args, folder, port, double):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    torch.set_num_threads(1)
    dtype = torch.float64 if double else torch.float32
    net = build(**args)
    net.load_state_dict(load_safetensors(folder + "/init"))
    net = net.to(dtype).train()
    ddp = torch.nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.SGD(ddp.parameters(), LR, momentum=0.9, weight_decay=1e-4)
    data = load_safetensors(f"{folder}/batches.{rank}")
    mean, std = (torch.tensor([float(v) for v in t.split(",")], dtype=dtype).view(1, 3, 1, 1) for t in (MEAN, STD))
    for s in range(STEPS):
        x = (data["x"][s * BATCH : (s + 1) * BATCH].permute(0, 3, 1, 2).to(dtype) / 255 - mean) / std
        loss = F.cross_entropy(ddp(x), data["y"][s * BATCH : (s + 1) * BATCH].long())
        opt.zero_grad()
        loss.backward()
        opt.step()
    if rank == 0:
        torch.save(net.state_dict(), f"{folder}/torch.{int(double)}")
    dist.destroy_process_group()


def case(testbin, store, args, port):
    with tempfile.TemporaryDirectory(prefix="ddpipe-ddp.") as folder:
        torch.manual_seed(1)
        save_safetensors(folder + "/init", build(**args).state_dict())
        saving = loaders(store, folder)
        saving += [subprocess.Popen([testbin + "/tools/batch_save", endpoint(folder, r), str(STEPS), f"{folder}/batches.{r}"])
                   for r in range(WORLD)]
        finish(saving)
        ranks = ours(args, store, folder, port)
        for double in (0, 1):
            mp.spawn(torch_rank, (args, folder, port + 1 + double, double), nprocs=WORLD)
        single, exact = (torch.load(f"{folder}/torch.{d}") for d in (0, 1))
    bad = [f"{k}: ranks differ" for k in exact if k in ranks[0] and not is_buffer(k) and not torch.equal(ranks[0][k], ranks[1][k])]
    worst = 0.0
    for name, c in exact.items():
        a, b, c = ranks[0][name].double(), single[name].double(), c.double()
        far, peer, scale = (a - c).abs().max().item(), (b - c).abs().max().item(), c.abs().max().item()
        allowed = max(10 * peer, 64 * STEPS * EPS * scale)
        worst = max(worst, far / allowed if allowed else 0.0)
        if not far <= allowed:
            bad.append(f"{name}: {far:.3g} from float64, PyTorch's float32 {peer:.3g}, allowed {allowed:.3g}")
    print(f"{'not ok' if bad else 'ok'} {args['name']}: {WORLD} ranks, {STEPS} steps, {len(exact)} tensors, "
          f"{worst:.2f} of the allowed distance at most")
    for line in bad[:12]:
        print("  #", line)
    return not bad


def is_buffer(name):
    """BatchNorm statistics are local between validations, as in DistributedDataParallel without broadcast."""
    return "running" in name or "tracked" in name


def main():
    testbin, data = sys.argv[1:3]
    store = subprocess.run([BIN + "/prep", "--data", data], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    port = 20000 + os.getpid() % 20000
    try:
        results = [case(testbin, store, dict(name="vgg11"), port), case(testbin, store, dict(name="wideresnet", width=1), port + 4)]
    finally:
        subprocess.run([BIN + "/prep", "--remove", store], check=True)
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
