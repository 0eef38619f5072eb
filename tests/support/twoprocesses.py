"""The same script in one process and in two; what it saved either way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

STILL = "from headwise.testing import no_dropout\nno_dropout(model)\n"
"""Each process has dropout of its own: without it the two ways agree."""


def assert_agree(folder: Path, script: str) -> dict[str, torch.Tensor]:
    """Run ``script``, which leaves ``kept``, a dict of tensors, writing into ``out``; one process's tensors."""
    job = folder / "job.py"
    head = (
        "import os, sys, torch\nfrom safetensors.torch import save_file\ntorch.set_num_threads(1)\nout = sys.argv[1]\n"
    )
    save = "\nif os.environ.get('RANK', '0') == '0':\n    save_file(kept, out + '.safetensors')\n"
    job.write_text(head + script + save)
    subprocess.run([sys.executable, job, folder / "one"], check=True)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    env = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launch, job, folder / "two"], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    one, two = (load_file(folder / f"{name}.safetensors") for name in ("one", "two"))
    for name in one:
        # A key bias shifts all attention scores alike: its true gradient is 0, and Adam blows up the rounding noise.
        if "key.bias" not in name:
            assert torch.allclose(one[name], two[name], atol=1e-5), name
    return one
