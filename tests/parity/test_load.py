#!/usr/bin/python3
"""Weights trained here load in PyTorch (load_state_dict, strict) and measure the same validation accuracy on all
validation images, but for images whose two best logits lie within 1e-4 of each other, which may fall either way.

usage: test_load.py WEIGHTS.safetensors DATA CORRECT[,CORRECT…] MODEL [WIDTHS ACTIVATION]
CORRECT: how many validation images the trainer counted as right, in one run or in several. Prints the number of near ties.
"""
import os
import sys

import torch

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cifar import decoded  # noqa: E402
from models import build, load_safetensors  # noqa: E402


def main():
    weights, data, counted, name = sys.argv[1:5]
    extra = dict(widths=tuple(map(int, sys.argv[5].split(","))), activation=sys.argv[6]) if len(sys.argv) > 6 else {}
    net = build(name, **extra).eval()
    net.load_state_dict(load_safetensors(weights), strict=True)
    with decoded(data) as (train_x, _, val_x, val_y):
        scaled = torch.from_numpy(train_x).double() / 255
        mean, std = scaled.mean((0, 1, 2)), scaled.std((0, 1, 2), unbiased=False)
        images, labels = torch.from_numpy(val_x.copy()), torch.from_numpy(val_y)
    images = ((images.double() / 255 - mean) / std).float().permute(0, 3, 1, 2)
    with torch.no_grad():
        logits = torch.cat([net(images[i : i + 500]) for i in range(0, len(images), 500)])
    best = logits.topk(2).values
    ties = (best[:, 0] - best[:, 1] < 1e-4).sum().item()
    correct = (logits.argmax(1) == labels).sum().item()
    ok = all(abs(correct - int(c)) <= ties for c in counted.split(","))
    print(f"{'ok' if ok else 'not ok'} {name}: PyTorch counts {correct} of {len(labels)}, the trainer {counted}, "
          f"{ties} images have their two best logits within 1e-4")
    print(f"{int(ok)} passed, {int(not ok)} failed")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
