#!/usr/bin/python3
"""With --sync-batchnorm two ranks with half a batch each compute one rank's step on the whole batch; without it they do not.

The batches: images in the store's order, not augmented; the two ranks' shards interleave to the one rank's. After one step,
BatchNorm's running statistics depend on the forward pass alone, a continuous function: sums in another order move each value
by about 1e-7 of its size a layer. Allowed: 1e-5 of a tensor's largest value. A weight may also move because a maximum or a
ReLU falls the other way, so of these the median over tensors is held to the same bound.

usage: test_sync_norm.py DATA
"""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from models import load_safetensors  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ALLOWED = 1e-5


def run(data, folder, name, ranks, *more):
    command = [ROOT + "/jobs/run_pipeline.sh", "--data", data, "--run-dir", f"{folder}/{name}", "--ranks-per-node", str(ranks),
               "--global-batch-size", "16", "--no-shuffle", "--augment", "none", "--limit-train", "16", "--limit-val", "16",
               "--model", "speednet", "--widths", "16,32,32", "--max-steps", "1", "--epochs", "1", "--target-accuracy", "0",
               "--lr", "0.01", *more]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=120)
    return load_safetensors(f"{folder}/{name}/model.safetensors")


def distances(a, b, running):
    """Of each tensor: the largest difference as a part of the largest value."""
    names = [n for n in b if ("running_" in n) == running and b[n].is_floating_point()]
    return sorted(((a[n].double() - b[n].double()).abs().max() / b[n].double().abs().max()).item() for n in names)


def main():
    data = sys.argv[1]
    with tempfile.TemporaryDirectory(prefix="ddpipe-norm.") as folder:
        one = run(data, folder, "one", 1)
        together = run(data, folder, "together", 2, "--sync-batchnorm")
        apart = run(data, folder, "apart", 2)
    statistics, weights = distances(together, one, True), distances(together, one, False)
    without = distances(apart, one, True)
    ok = statistics[-1] <= ALLOWED and weights[len(weights) // 2] <= ALLOWED and without[-1] > 100 * ALLOWED
    print(f"{'ok' if ok else 'not ok'} running statistics {statistics[-1]:.2g} off, weights {weights[len(weights) // 2]:.2g} (median; "
          f"largest {weights[-1]:.2g}), allowed {ALLOWED:.0e}; statistics without --sync-batchnorm {without[-1]:.2g} off")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
