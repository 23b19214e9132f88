"""The images of a store that prep made (lib/store.h), as numpy arrays: uint8 (N,H,W,C), int64 labels."""
import os
import subprocess

import numpy as np

BIN = os.environ.get("BIN", os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bin"))


class decoded:
    """with decoded(directory) as (train_x, train_y, val_x, val_y): makes a store of it, and removes it."""

    def __init__(self, directory):
        self.directory = directory

    def __enter__(self):
        made = subprocess.run([BIN + "/prep", "--data", self.directory], check=True, stdout=subprocess.PIPE, text=True)
        self.path = made.stdout.strip()
        return load_store(self.path)

    def __exit__(self, *_):
        subprocess.run([BIN + "/prep", "--remove", self.path], check=True)


def load_store(path):
    text = subprocess.run([BIN + "/prep", "--info", path], check=True, stdout=subprocess.PIPE, text=True).stdout
    info = dict(line.split(" ", 1) for line in text.splitlines())
    n_train, n_val, h, w, c = (int(info[k]) for k in ("n_train", "n_val", "height", "width", "channels"))
    data, at, out = np.fromfile(path, np.uint8), 8192, []
    for n in (n_train, n_val):
        for size, shape, dtype in ((n * h * w * c, (n, h, w, c), np.uint8), (2 * n, (n,), "<u2")):
            out.append(data[at : at + size].view(dtype).reshape(shape))
            at = (at + size + 4095) // 4096 * 4096
    return out[0], out[1].astype(np.int64), out[2], out[3].astype(np.int64)
