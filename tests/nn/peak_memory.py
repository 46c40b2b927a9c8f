"""Load a checkpoint in float32; print the peak of anonymous memory above the imports, as JSON."""

import json
import sys
import threading
from pathlib import Path

import gguf.quants  # noqa: F401  (one of the imports that the baseline counts)
import torch

from ridgeline.models.checkpoint import open_checkpoint
from ridgeline.nn.load import dense, load_weights


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("no RssAnon in /proc/self/status")


def main() -> None:
    torch.set_num_threads(1)
    checkpoint = open_checkpoint(sys.argv[1])
    torch.zeros(4096).sum().item()  # the allocator's and the thread pool's own pages
    done = threading.Event()
    peak = baseline = anonymous_bytes()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, anonymous_bytes())

    thread = threading.Thread(target=watch)
    thread.start()
    weights = load_weights(checkpoint, dense(torch.float32), progress=False)
    peak = max(peak, anonymous_bytes())
    done.set()
    thread.join()
    sizes = [w.numel() * w.element_size() for w in weights.values() if isinstance(w, torch.Tensor)]
    print(
        json.dumps({"peak_bytes": peak - baseline, "weights_bytes": sum(sizes), "largest_bytes": max(sizes)})
    )


main()
