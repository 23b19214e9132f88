#!/usr/bin/python3
"""The trainer computes what PyTorch computes: every layer's output and every gradient of a first step,
the losses of six steps, and the state_dict after them, for all three networks.

Tolerance: PyTorch in float64 is taken as exact. Ours and PyTorch's float32 are two roundings of the same
sums, so their distances from it are of one size; a single ReLU or maximum that falls the other way adds
more than rounding, in either of them. Ours may be at most 10 × as far from float64 as PyTorch's float32 is,
or 64·eps of the tensor's largest value where float32 happens to be nearer than that.

usage: test_parity.py TESTBIN; prints a line per network, "ok" or what is off; exit 1 on the latter.
"""
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
from torch.nn import functional as F

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from models import build, load_safetensors, save_safetensors  # noqa: E402

STEPS, EPS = 6, float(np.finfo(np.float32).eps)
MEAN, STD = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]


def run_torch(net, dtype, x, y, optimizer, hyper, relu_names):
    lr, momentum, nesterov, wd, shift_scale, smoothing = hyper
    net = net.to(dtype).train()
    shifts = [p for n, p in net.named_parameters() if p.requires_grad and is_shift(net, n)]
    others = [p for n, p in net.named_parameters() if p.requires_grad and not is_shift(net, n)]
    groups = [dict(params=shifts, lr=lr * shift_scale, weight_decay=wd / shift_scale),
              dict(params=others, lr=lr, weight_decay=wd)]
    opt = (torch.optim.SGD(groups, lr, momentum=momentum, nesterov=bool(nesterov)) if optimizer == "sgd"
           else torch.optim.Adam(groups, lr))
    mean, std = (torch.tensor(v, dtype=dtype).view(1, 3, 1, 1) for v in (MEAN, STD))
    found, losses, hooks = {}, [], []
    for name, module in net.named_modules():
        if isinstance(module, (torch.nn.Conv2d, torch.nn.BatchNorm2d, torch.nn.Linear)):
            def keep(_, __, out, name=name):
                key = "relu." + name if name in relu_names else "out." + name
                found[key] = out.detach().clamp(min=0) if name in relu_names else out.detach().clone()
            hooks.append(module.register_forward_hook(keep))
    for s in range(STEPS):
        inputs = (torch.from_numpy(x[s]).permute(0, 3, 1, 2).to(dtype) / 255 - mean) / std
        loss = F.cross_entropy(net(inputs), torch.from_numpy(y[s]).long(), label_smoothing=smoothing)
        opt.zero_grad()
        loss.backward()
        if s == 0:
            found.update({"grad." + n: p.grad.clone() for n, p in net.named_parameters() if p.requires_grad})
            for h in hooks:
                h.remove()
        opt.step()
        losses.append(loss.detach())
    found["loss"] = torch.stack(losses)
    found.update({"after." + k: v.detach().clone() for k, v in net.state_dict().items()})
    return found


def is_shift(net, name):
    module = net.get_submodule(name.rpartition(".")[0])
    return name.endswith(".bias") and isinstance(module, torch.nn.BatchNorm2d)


def case(testbin, folder, label, args, batch, size, optimizer, hyper):
    torch.manual_seed(len(label))
    rng = np.random.default_rng(3)
    x = rng.integers(0, 256, (STEPS, batch, size, size, 3), dtype=np.uint8)
    y = rng.integers(0, 10, (STEPS, batch), dtype=np.int32)
    net = build(**args)
    if args["name"] == "speednet":
        net.whiten((torch.from_numpy(x[0]).permute(0, 3, 1, 2).float() / 255 - 0.47) / 0.25)
    first = {k: v.clone() for k, v in net.state_dict().items()}
    source, result = os.path.join(folder, label), os.path.join(folder, label + ".out")
    save_safetensors(source + ".init", first)
    save_safetensors(source, dict(x=x.reshape(-1, size, size, 3), y=y.reshape(-1), mean=np.array(MEAN),
                                  std=np.array(STD), hyper=np.array(hyper, np.float64)))
    subprocess.run([os.path.join(testbin, "parity/parity"), source, result, str(STEPS), optimizer, args["name"],
                    str(args.get("width", 1)), ",".join(map(str, args.get("widths", (16, 64, 128)))),
                    args.get("activation", "relu")], check=True)
    ours = load_safetensors(result)
    ours.update({"after." + k: v for k, v in load_safetensors(result + ".weights").items()})
    relu_names = {k[5:] for k in ours if k.startswith("relu.")}
    net.load_state_dict(first)
    single = run_torch(net, torch.float32, x, y, optimizer, hyper, relu_names)
    net.load_state_dict(first)
    exact = run_torch(net, torch.float64, x, y, optimizer, hyper, relu_names)
    return compare(label, ours, single, exact)


def compare(label, ours, single, exact):
    bad, worst = [], 0.0
    if set(ours) != set(exact):
        bad.append(f"other names: {sorted(set(ours) ^ set(exact))[:6]}")
    for name in sorted(set(ours) & set(exact)):
        a, b, c = (t[name].double() for t in (ours, single, exact))
        if a.shape != c.shape:
            bad.append(f"{name}: shape {tuple(a.shape)}, PyTorch has {tuple(c.shape)}")
            continue
        scale = max(c.abs().max().item(), 1e-30)
        # a convolution's bias before a BatchNorm has no effect: its gradient is rounding alone
        if name.startswith("grad.") and name.endswith(".bias") and name[:-4] + "weight" in exact:
            scale = max(scale, exact[name[:-4] + "weight"].abs().max().item())
        far, peer = (a - c).abs().max().item(), (b - c).abs().max().item()
        allowed = max(10 * peer, 64 * EPS * scale)
        worst = max(worst, far / allowed)
        if not far <= allowed:
            bad.append(f"{name}: {far:.3g} from float64, PyTorch's float32 {peer:.3g}, allowed {allowed:.3g}")
    print(f"{'not ok' if bad else 'ok'} {label}: {len(exact)} tensors, {worst:.2f} of the allowed distance at most")
    for line in bad[:12]:
        print("  #", line)
    return not bad


def main():
    testbin = sys.argv[1]
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory(prefix="ddpipe-parity.") as folder:
        results = [
            case(testbin, folder, "vgg11", dict(name="vgg11"), 8, 32, "sgd", (0.01, 0.9, 0, 1e-4, 1, 0)),
            case(testbin, folder, "wideresnet", dict(name="wideresnet", width=1), 8, 32, "adam", (1e-3, 0, 0, 1e-4, 1, 0)),
            case(testbin, folder, "speednet-gelu", dict(name="speednet", activation="gelu"), 16, 32, "sgd",
                 (0.02, 0.85, 1, 1.7e-3, 64, 0.2)),
            case(testbin, folder, "speednet-relu-24", dict(name="speednet", activation="relu", stem_bias=False), 16, 24,
                 "sgd", (0.02, 0.85, 1, 1.7e-3, 64, 0.2)),
        ]
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
