#!/usr/bin/env python3
"""The quick recipe in PyTorch: the peer that `make run` is measured against.

usage: quick_recipe.py --data DIR [--seed S] [--threads N] [--epochs E] [--channels-last 0|1]

DIR is what `bin/fetch` prints. Same network, batches, schedule, averaging
and stop rule as jobs/recipes/quick.opts; images are one float tensor, augmented
an epoch at a time, the fastest loading PyTorch has. Prints ddpipe's epoch line, and at the
end one JSON line with the figures.
"""
import argparse
import json
import os
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cifar import decoded  # noqa: E402
from models import SpeedNet  # noqa: E402


def augment(images, flip, generator):
    """Reflect-pad 2, random crop, flip, all images at once: 25 copies, one for each shift."""
    size = images.shape[-1]
    padded = F.pad(images, (2, 2, 2, 2), mode="reflect")
    shifts = torch.randint(0, 5, (len(images), 2), generator=generator)
    out = torch.empty_like(images)
    for dy in range(5):
        for dx in range(5):
            pick = (shifts[:, 0] == dy) & (shifts[:, 1] == dx)
            out[pick] = padded[pick, :, dy : dy + size, dx : dx + size]
    return torch.where(flip.view(-1, 1, 1, 1), out.flip(-1), out)


def batches(images, labels, batch, flip, generator):
    """Shuffled; the last batch is dropped where it is not full."""
    images = augment(images, flip, generator)
    order = torch.randperm(len(images), generator=generator)
    for start in range(0, len(images) - batch + 1, batch):
        index = order[start : start + batch]
        x = images[index]
        yield x.contiguous(memory_format=torch.channels_last) if CHANNELS_LAST else x, labels[index]


def main():
    global CHANNELS_LAST
    p = argparse.ArgumentParser()
    p.add_argument("--data", required=True)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--channels-last", type=int, default=1)
    a = p.parse_args()
    CHANNELS_LAST = bool(a.channels_last)
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    generator = torch.Generator().manual_seed(a.seed)
    with decoded(a.data) as arrays:
        train_x, train_y, val_x, val_y = (torch.from_numpy(x) for x in arrays)
    train_x, val_x = (x.permute(0, 3, 1, 2).float() / 255 for x in (train_x, val_x))
    mean = train_x.mean((0, 2, 3), keepdim=True)
    std = train_x.std((0, 2, 3), keepdim=True, unbiased=False)
    train_x, val_x = (train_x - mean) / std, (val_x - mean) / std
    net = SpeedNet((16, 64, 128), activation="relu", stem_bias=False)
    net.whiten(train_x[:5000])
    net = net.to(memory_format=torch.channels_last) if CHANNELS_LAST else net
    batch, steps_per_epoch = 128, len(train_x) // 128
    total = a.epochs * steps_per_epoch
    biases = [q for n, q in net.named_parameters() if "norm" in n and q.requires_grad]
    others = [q for n, q in net.named_parameters() if "norm" not in n and q.requires_grad]
    lr, wd = 0.1467, 1.7e-3
    optimizer = torch.optim.SGD(
        [dict(params=biases, lr=lr * 64, weight_decay=wd / 64), dict(params=others, lr=lr, weight_decay=wd)],
        momentum=0.85, nesterov=True)
    factor = lambda s: (0.2 + 0.8 * (s / total) / 0.23) if s / total < 0.23 else 1 - 0.93 * (s / total - 0.23) / 0.77
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    average = {k: v.clone() for k, v in net.state_dict().items() if v.is_floating_point()}
    small = None
    flip_first = torch.rand(len(train_x), generator=generator) < 0.5
    began, step, streak, seconds, met = time.perf_counter(), 0, 0, 0.0, None
    for epoch in range(1, a.epochs + 1):
        start = time.perf_counter()
        net.train()
        images = train_x
        if epoch <= 2:
            if small is None:
                small = F.interpolate(train_x, size=(24, 24), mode="bilinear", antialias=True, align_corners=False)
            images = small
        loss_sum = correct = count = 0
        for x, y in batches(images, train_y, batch, flip_first ^ (epoch % 2 == 0), generator):
            out = net(x)
            loss = F.cross_entropy(out, y, label_smoothing=0.2)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            loss_sum += loss.item() * len(y)
            correct += (out.argmax(1) == y).sum().item()
            count += len(y)
            if step % 5 == 0:
                d = min(0.99**5, (1 + step) / (50 + step))
                for k, v in net.state_dict().items():
                    if k in average:
                        average[k].lerp_(v, 1 - d)
        trained = time.perf_counter() - start
        raw = {k: v.clone() for k, v in net.state_dict().items()}
        net.load_state_dict({**raw, **average})
        net.eval()
        val_loss = val_correct = 0
        with torch.no_grad():
            for i in range(0, len(val_x), 500):
                x = val_x[i : i + 500]
                x = x.contiguous(memory_format=torch.channels_last) if CHANNELS_LAST else x
                out = net(x)
                val_loss += F.cross_entropy(out, val_y[i : i + 500], reduction="sum").item()
                val_correct += (out.argmax(1) == val_y[i : i + 500]).sum().item()
        net.load_state_dict(raw)
        accuracy = val_correct / len(val_x)
        streak = streak + 1 if accuracy >= 0.85 else 0
        print(f"Epoch = {epoch:2d}: Cumulative Time = {time.perf_counter() - began:5.3f}, Epoch Time = {trained:5.3f}, "
              f"Images/sec = {count / trained:.1f}, Training Loss = {loss_sum / count:.3f}, "
              f"Training Accuracy = {correct / count:.3f}, Validation Loss = {val_loss / len(val_x):5.3f}, "
              f"Validation Accuracy = {accuracy:5.4f}", flush=True)
        seconds += trained
        if streak == 2 and met is None:
            met = epoch
            break
    print(json.dumps(dict(seed=a.seed, seconds=time.perf_counter() - began, train_seconds=seconds, met_at_epoch=met,
                          accuracy=accuracy)))


if __name__ == "__main__":
    main()
